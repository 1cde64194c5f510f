"""Anthropic Messages: blocks of text, thinking and tool use, and back.

A call's `input` comes back parsed; it is stored as the text that was sampled, so a replayed call
that says the same gets that text again. `cache_control` and `is_error` say nothing about tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from milepost.actors.session.http.anthropic_events import (
    MessageEvents,
    blocks_of,
    message_id,
    usage_of,
)
from milepost.actors.session.http.dialect import Asked, encode, finish_word
from milepost.actors.session.http.fields import check_effort, refuse_more
from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from milepost.actors.session.http.dialect import About, Fault, Reading, ReplyWriter
    from milepost.actors.session.http.fields import Fields
    from milepost.actors.session.sampled_calls import SampledCalls
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage

Bound = Annotated[int, Meta(ge=1)]
_TOOL_FIELDS = (
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "eager_input_streaming",
)
_ERRORS = {404: "not_found_error", 413: "request_too_large"}


class AnthropicMessages:
    """See the module."""

    def read(self, fields: Fields, reading: Reading) -> Asked:
        """As the protocol says.

        Raises:
            TurnRefused: kind bad_request.
        """
        spec, replay = reading.session.spec, reading.replay
        sampled = reading.session.record.sampled_calls
        system = _system(fields.take("system", object))

        def convert(item: dict[str, Any], index: int) -> tuple[ChatMessage, ...]:
            return messages_of(item, f"messages[{index}]", sampled)

        raw = fields.raw("messages") or b"[]"
        messages = replay.messages(
            raw, convert, "messages", fields.place("messages"), tuple(system)
        )
        tools = replay.tools(fields.raw("tools"), _tool, fields.dropped_of_tools)
        bound = fields.take("max_tokens", Bound)
        stream = fields.take("stream", bool) or False
        model = fields.take("model", str) or ""
        fields.sampling(spec.sampling)
        _check_thinking(fields, reading.template_options)
        fields.neutral("stop_sequences", ([],))
        choice = fields.take("tool_choice", dict[str, Any]) or {"type": "auto"}
        if choice.pop("disable_parallel_tool_use", False) or choice != {"type": "auto"}:
            raise TurnRefused(
                "bad_request", "tool_choice: only auto is sampled, nothing is forced on the policy"
            )
        fields.passing("metadata", "service_tier", "inference_geo", "speed")
        fields.done()
        begun = bool(messages) and messages[-1]["role"] == "assistant"
        return Asked(messages, tools, bound, stream=stream, model=model, begun=begun)

    def response_id(self, about: About) -> str:
        """Unlike any other of this server."""
        return message_id(about)

    def reply(self, reply: ChatReply, about: About) -> bytes:
        """One `message`."""
        return encode(
            {
                "id": message_id(about),
                "type": "message",
                "role": "assistant",
                "model": about.asked.model,
                "content": blocks_of(reply.message),
                "stop_reason": stop_reason(reply),
                "stop_sequence": None,
                "usage": usage_of(reply.usage),
            }
        )

    def fault(self, fault: Fault) -> bytes:
        """The dialect's own shape."""
        other = "invalid_request_error" if fault.status < 500 else "api_error"
        kind = _ERRORS.get(fault.status, other)
        return encode({"type": "error", "error": {"type": kind, "message": fault.reason}})

    def writer(self, about: About) -> ReplyWriter:
        """Events from message_start to message_stop."""
        return MessageEvents(about, self.fault, stop_reason)


def stop_reason(reply: ChatReply) -> str:
    """Why it ended."""
    return finish_word(reply, stop="end_turn", calls="tool_use", length="max_tokens")


def messages_of(
    item: Mapping[str, Any], where: str, sampled: SampledCalls
) -> tuple[ChatMessage, ...]:
    """The OpenAI messages that one message of blocks stands for.

    Raises:
        TurnRefused: kind bad_request; a role or block that is not carried.
    """
    role, content = item.get("role"), item.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        told = type(content).__name__
        raise TurnRefused("bad_request", f"{where}.content is {told}, text or blocks are taken")
    blocks = [_block(block, f"{where}.content[{at}]") for at, block in enumerate(content)]
    if not blocks and role != "assistant":
        raise TurnRefused("bad_request", f"{where}.content is empty: leave the message out")
    if role == "assistant":
        return (_assistant(blocks, where, sampled),)
    if role == "system":
        return ({"role": "system", "content": _text(blocks, f"{where}.content")},)
    if role != "user":
        raise TurnRefused("bad_request", f"{where} has role {role!r}, user or assistant is taken")
    return tuple(_user(blocks, where))


def _assistant(blocks: list[dict[str, Any]], where: str, sampled: SampledCalls) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": ""}
    calls = []
    for at, block in enumerate(blocks):
        match block["type"]:
            case "text":
                message["content"] += _string(block, "text", f"{where}.content[{at}]")
            case "thinking":
                text = _string(block, "thinking", f"{where}.content[{at}]")
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case "tool_use":
                call_id, value = block.get("id"), block.get("input", {})
                arguments = sampled.spelling(str(call_id), value)
                function = {"name": block.get("name"), "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            case kind:
                raise _not_carried(kind, f"{where}.content[{at}]")
    return {**message, "tool_calls": calls} if calls else message


def _user(blocks: list[dict[str, Any]], where: str) -> list[ChatMessage]:
    """Tool results are messages of their own; texts between them are joined."""
    messages: list[ChatMessage] = []
    for at, block in enumerate(blocks):
        place = f"{where}.content[{at}]"
        match block["type"]:
            case "text":
                text = _string(block, "text", place)
                if messages and messages[-1]["role"] == "user":
                    messages[-1]["content"] += text
                else:
                    messages.append({"role": "user", "content": text})
            case "tool_result":
                content = _text_of(block.get("content"), f"{place}.content")
                call_id = block.get("tool_use_id")
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case kind:
                raise _not_carried(kind, place)
    return messages


def _block(block: object, where: str) -> dict[str, Any]:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise TurnRefused("bad_request", f"{where} is no block with a type")
    return block


def _string(block: Mapping[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise TurnRefused("bad_request", f"{where}.{name} is {type(value).__name__}, not text")
    return value


def _text(blocks: list[dict[str, Any]], where: str) -> str:
    texts = []
    for at, block in enumerate(blocks):
        if block["type"] != "text":
            raise _not_carried(block["type"], f"{where}[{at}]")
        texts.append(_string(block, "text", f"{where}[{at}]"))
    return "".join(texts)


def _not_carried(kind: str, where: str) -> TurnRefused:
    return TurnRefused(
        "bad_request",
        f"{where} is of type {kind}: text, thinking, tool_use and tool_result are carried, no "
        "images, documents or files",
    )


def _text_of(content: object, where: str) -> str:
    """Of a text, or of blocks of text; nothing is an empty text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        told = type(content).__name__
        raise TurnRefused("bad_request", f"{where} is {told}, text or blocks of text are taken")
    return _text([_block(one, f"{where}[{at}]") for at, one in enumerate(content)], where)


def _system(system: object) -> list[ChatMessage]:
    text = _text_of(system, "system")
    return [{"role": "system", "content": text}] if text else []


def _tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    kind, schema = tool.get("type") or "custom", tool.get("input_schema")
    if kind != "custom" or not isinstance(schema, dict):
        raise TurnRefused(
            "bad_request",
            f"tools[{index}] is of type {kind!r}, only tools of the client's own with an "
            "input_schema can be called",
        )
    refuse_more(tool, _TOOL_FIELDS, index)
    function = {"name": tool.get("name"), "parameters": schema}
    if description := tool.get("description"):
        function = {"name": tool.get("name"), "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _check_thinking(fields: Fields, options: Mapping[str, Any]) -> None:
    thinking = fields.take("thinking", dict[str, Any]) or {}
    match thinking.pop("type", None):
        case None:
            pass
        case "disabled":
            check_effort("none", options, "thinking.type")
        case "adaptive" if options.get("enable_thinking") is not False:
            thinking.pop("display", None)
        case kind:
            raise TurnRefused(
                "bad_request",
                f"thinking.type = {kind!r}: how much is thought is the run's to set "
                f"(template_options {dict(options)!r}), no budget of thinking can be kept",
            )
    if thinking:
        told = msgspec.json.encode(thinking).decode()
        raise TurnRefused("bad_request", f"thinking has {told}, which cannot be met")
    output: dict[str, Any] = fields.take("output_config", dict[str, Any]) or {}
    check_effort(output.pop("effort", None), options, "output_config.effort")
    if output:
        raise TurnRefused("bad_request", f"output_config.{next(iter(output))} cannot be met")
