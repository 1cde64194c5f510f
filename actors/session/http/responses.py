"""OpenAI Responses: a conversation as items, kept by the client or by the session.

Neighbouring items of the assistant (reasoning, text, calls) are one message of the conversation,
unless their ids say that they are of two replies.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from milepost.actors.session.http.continued import Continued
from milepost.actors.session.http.dialect import Asked, encode
from milepost.actors.session.http.fields import check_effort, refuse_more
from milepost.actors.session.http.response_events import ResponseEvents, body_of, response_id
from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from milepost.actors.session.http.dialect import About, Fault, Reading, ReplyWriter
    from milepost.actors.session.http.fields import Fields
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage

Bound = Annotated[int, Meta(ge=1)]
_ITEM_ID: Final = re.compile(r"(?:rs|msg|fc)_(.+_\d+_\d+)_\d+", re.DOTALL)
"""As `response_events` writes it: the serial of a reply, and a number in that reply."""
_REPLY: Final = "reply"
"""In a part of a message: which reply it is of. Items that do not tell have none."""
_CARRIED = "text, reasoning, function calls and their outputs are carried, no images or files"


class Responses:
    """See the module."""

    def read(self, fields: Fields, reading: Reading) -> Asked:
        """As the protocol says.

        Raises:
            TurnRefused: kind bad_request.
        """
        sampling = reading.session.spec.sampling
        asked, messages = _conversation(fields, reading)
        tools = reading.replay.tools(fields.raw("tools"), _tool, fields.dropped_of_tools)
        bound = fields.take("max_output_tokens", Bound)
        stream = fields.take("stream", bool) or False
        model = fields.take("model", str) or ""
        store = fields.take("store", bool) is not False
        fields.sampling(sampling)
        _check_reasoning(fields, reading.template_options)
        fields.neutral("tool_choice", ("auto",) if tools else ("auto", "none"))
        fields.neutral("parallel_tool_calls", (True,))
        fields.neutral("text", ({"format": {"type": "text"}},))
        fields.neutral("truncation", ("disabled",))
        fields.neutral("background", (False,))
        fields.neutral("conversation", ())
        fields.neutral("include", ([], ["reasoning.encrypted_content"]))
        fields.passing(
            "metadata",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "stream_options",
            "user",
        )
        fields.done()
        echo = {
            "instructions": asked.instructions or None,
            "max_output_tokens": bound,
            "previous_response_id": asked.previous or None,
            "store": store,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "tools": [{"type": "function", "strict": False, **t["function"]} for t in tools],
        }
        keep = asked if store else None
        return Asked(messages, tools, bound, stream=stream, model=model, echo=echo, keep=keep)

    def response_id(self, about: About) -> str:
        """Unlike any other of this server."""
        return response_id(about)

    def reply(self, reply: ChatReply, about: About) -> bytes:
        """One `response`."""
        return encode(body_of(about, reply))

    def fault(self, fault: Fault) -> bytes:
        """`{"error": {...}}` as OpenAI writes it."""
        kind = "invalid_request_error" if fault.status < 500 else "server_error"
        told = {"message": fault.reason, "type": kind, "code": fault.kind or None, "param": None}
        return encode({"error": {**told, "limit": fault.limit} if fault.limit else told})

    def writer(self, about: About) -> ReplyWriter:
        """Events from response.created to response.completed."""
        return ResponseEvents(about)


def _conversation(fields: Fields, reading: Reading) -> tuple[Continued, list[ChatMessage]]:
    """What the request adds, and the whole conversation: instructions, what was said, the input."""
    raw, place = fields.raw("input") or b"[]", fields.place("input")
    if raw.startswith(b'"'):
        raw = b'[{"role":"user","content":%s}]' % raw
    asked = Continued(
        previous=fields.take("previous_response_id", str) or "",
        instructions=fields.take("instructions", str) or "",
        messages=tuple(_grouped(reading.replay.messages(raw, _item, "input", place))),
    )
    messages: list[ChatMessage] = []
    if asked.instructions:
        messages.append({"role": "system", "content": asked.instructions})
    if asked.previous:
        may_branch = reading.session.record.takes_parallel
        messages += reading.kept.history(asked, may_branch=may_branch)
    return asked, [*messages, *asked.messages]


def _check_reasoning(fields: Fields, options: Mapping[str, Any]) -> None:
    reasoning = fields.take("reasoning", dict[str, Any]) or {}
    check_effort(reasoning.pop("effort", None), options, "reasoning.effort")
    if more := [name for name, value in reasoning.items() if value is not None]:
        raise TurnRefused("bad_request", f"reasoning.{more[0]} cannot be met, leave it out")


def _item(item: dict[str, Any], index: int) -> tuple[ChatMessage, ...]:
    """The message, or the part of one, that an item stands for."""
    message = _said(item, f"input[{index}]")
    if message["role"] == "assistant" and isinstance(item_id := item.get("id"), str):
        told = _ITEM_ID.fullmatch(item_id)
        message[_REPLY] = told.group(1) if told else ""
    return (message,)


def _said(item: dict[str, Any], where: str) -> ChatMessage:
    match item.get("type", "message"):
        case "message":
            content = _text(item.get("content"), f"{where}.content")
            return {"role": item.get("role"), "content": content}
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            text = _text(parts, f"{where}.content")
            return {"role": "assistant", "reasoning_content": text}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            content = _text(item.get("output"), f"{where}.output")
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        case kind:
            raise TurnRefused("bad_request", f"{where} is of type {kind}: {_CARRIED}")


def _grouped(messages: Iterable[ChatMessage]) -> Iterable[ChatMessage]:
    """Neighbouring parts of the assistant as one message, as far as they are of one reply.

    A reply may follow another with nothing said in between: the client asked for one more.
    """
    open_message: ChatMessage | None = None
    open_reply = ""
    for message in messages:
        if message["role"] != "assistant":
            if open_message is not None:
                yield open_message
            open_message, open_reply = None, ""
            yield message
            continue
        reply = message.get(_REPLY, "")
        if open_message is not None and reply and open_reply and reply != open_reply:
            yield open_message
            open_message, open_reply = None, ""
        open_message = _added(open_message or {"role": "assistant", "content": ""}, message)
        open_reply = open_reply or reply
    if open_message is not None:
        yield open_message


def _added(message: ChatMessage, part: ChatMessage) -> ChatMessage:
    added = dict(message)
    for name in ("content", "reasoning_content"):
        if name in part:
            added[name] = message.get(name, "") + part[name]
    if "tool_calls" in part:
        added["tool_calls"] = [*message.get("tool_calls", ()), *part["tool_calls"]]
    return added


def _text(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        told = type(content).__name__
        raise TurnRefused("bad_request", f"{where} is {told}, text or text parts are taken")
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("text") if isinstance(part, dict) else None
        if not str(kind).endswith("text") or not isinstance(text, str):
            raise TurnRefused("bad_request", f"{where}[{at}] is of type {kind}: {_CARRIED}")
        texts.append(text)
    return "".join(texts)


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise TurnRefused(
            "bad_request",
            f"tools[{index}] is of type {tool.get('type')!r}, only functions can be called",
        )
    names = ("name", "description", "parameters")
    refuse_more(tool, ("type", *names), index)
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}
