"""OpenAI Chat Completions, with `reasoning_content` as open engines write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from milepost.actors.session.http.dialect import Asked, encode, event, finish_word, smaller
from milepost.actors.session.http.fields import check_effort
from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.families import ReplyDelta
    from milepost.actors.session.http.dialect import About, Fault, Reading, ReplyWriter
    from milepost.actors.session.http.fields import Fields
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage, Usage

Bound = Annotated[int, Meta(ge=1)]


class ChatCompletions:
    """See the module."""

    def read(self, fields: Fields, reading: Reading) -> Asked:
        """As the protocol says.

        Raises:
            TurnRefused: kind bad_request.
        """
        spec, options = reading.session.spec, reading.template_options
        raw = fields.raw("messages") or b"[]"
        messages = reading.replay.messages(raw, _message, "messages", fields.place("messages"))
        tools = reading.replay.tools(fields.raw("tools"), _tool, fields.dropped_of_tools)
        model = fields.take("model", str) or ""
        if fields.are_taken:
            return Asked(messages, tools, model=model)
        bound = smaller(
            fields.take("max_tokens", Bound), fields.take("max_completion_tokens", Bound)
        )
        stream = fields.take("stream", bool) or False
        stream_options = fields.take("stream_options", dict[str, Any]) or {}
        usage = bool(stream_options.pop("include_usage", False))
        if more := [name for name, value in stream_options.items() if value]:
            raise TurnRefused(
                "bad_request", f"stream_options.{more[0]} cannot be met, leave it out"
            )
        fields.sampling(spec.sampling)
        fields.template_options("chat_template_kwargs", options)
        check_effort(fields.take("reasoning_effort", str), options, "reasoning_effort")
        fields.neutral("n", (1,))
        fields.neutral("stop", ([],))
        fields.neutral(
            "tool_choice",
            (
                "auto",
                *(() if tools else ("none",)),
            ),
        )
        fields.neutral("parallel_tool_calls", (True,))
        fields.neutral("response_format", ({"type": "text"},))
        fields.neutral("modalities", (["text"],))
        fields.neutral("frequency_penalty", (0,))
        fields.neutral("presence_penalty", (0,))
        fields.neutral("repetition_penalty", (1,))
        fields.neutral("logit_bias", ({},))
        fields.passing(
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
        )
        fields.done()
        return Asked(messages, tools, bound, stream=stream, model=model, usage=usage)

    def response_id(self, about: About) -> str:
        """Unlike any other of this server."""
        return _response_id(about)

    def reply(self, reply: ChatReply, about: About) -> bytes:
        """One `chat.completion`."""
        choice = {
            "index": 0,
            "message": reply.message,
            "logprobs": None,
            "finish_reason": _finish(reply),
        }
        return encode(
            {
                **_head(about, "chat.completion"),
                "choices": [choice],
                "usage": _usage(reply.usage),
            }
        )

    def fault(self, fault: Fault) -> bytes:
        """`{"error": text}`, with the kind of refusal beside it."""
        return encode(_fault(fault))

    def writer(self, about: About) -> ReplyWriter:
        """Chunks, then `[DONE]`."""
        return _Chunks(about)


class _Chunks:
    def __init__(self, about: About) -> None:
        self._head = _head(about, "chat.completion.chunk")
        self._asked = about.asked
        self._num_calls = 0

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def deltas(self, deltas: Sequence[ReplyDelta]) -> bytes:
        return b"".join(self._chunk(self._delta(delta)) for delta in deltas)

    def end(self, reply: ChatReply) -> bytes:
        parts = [self._chunk({}, _finish(reply))]
        if self._asked.usage:
            parts.append(event({**self._head, "choices": [], "usage": _usage(reply.usage)}))
        return b"".join((*parts, b"data: [DONE]\n\n"))

    def fault(self, fault: Fault) -> bytes:
        return event(_fault(fault))

    def _delta(self, delta: ReplyDelta) -> dict[str, Any]:
        written: dict[str, Any] = {}
        if delta.reasoning:
            written["reasoning_content"] = delta.reasoning
        if delta.content:
            written["content"] = delta.content
        if delta.tool_calls:
            first = self._num_calls
            self._num_calls += len(delta.tool_calls)
            written["tool_calls"] = [
                {
                    "index": index,
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(delta.tool_calls, first)
            ]
        return written

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head, "choices": [choice]})


def _response_id(about: About) -> str:
    return f"chatcmpl-{about.serial}"


def _head(about: About, kind: str) -> dict[str, Any]:
    return {
        "id": _response_id(about),
        "object": kind,
        "created": int(about.created_s),
        "model": about.asked.model,
    }


def _fault(fault: Fault) -> dict[str, Any]:
    more = {"kind": fault.kind, "limit": fault.limit}
    return {"error": fault.reason, **{name: value for name, value in more.items() if value}}


def _finish(reply: ChatReply) -> str:
    return finish_word(reply, stop="stop", calls="tool_calls", length="length")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _message(item: dict[str, Any], index: int) -> tuple[ChatMessage, ...]:
    del index
    return (item,)


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    kind = tool.get("type", "function")
    if kind != "function":
        raise TurnRefused(
            "bad_request", f"tools[{index}] is of type {kind!r}, only functions can be called"
        )
    return tool
