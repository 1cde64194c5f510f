"""A reply in Anthropic's blocks, whole or as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from milepost.actors.session.http.dialect import event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from milepost.actors.session.families import ReplyDelta
    from milepost.actors.session.http.dialect import About, Fault
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage, Usage


SIGNATURE: Final = "unsigned"
"""Of reasoning. Clients (litellm) leave out what has none when they send a reply back, and then it
is not the reply that was sampled. It is not looked at."""


def message_id(about: About) -> str:
    """Id of the message that answers a request."""
    return f"msg_{about.serial}"


def blocks_of(message: ChatMessage) -> list[dict[str, Any]]:
    """Thinking, text and calls of a reply, in this order."""
    blocks: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": SIGNATURE})
    calls = message.get("tool_calls", ())
    if message["content"] or not (blocks or calls):
        blocks.append({"type": "text", "text": message["content"]})
    for call in calls:
        function = call["function"]
        # As it was sampled: numbers keep their spelling, and nothing can fail after the commit.
        value = msgspec.Raw(function["arguments"])
        name = function["name"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": value})
    return blocks


def usage_of(usage: Usage) -> dict[str, Any]:
    """Tokens; those from the cache are counted apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


class MessageEvents:
    """Writes message_start, blocks with their deltas, message_delta, message_stop.

    Args:
        about: the reply.
        fault: body of a refusal.
        stop_reason: of a reply.
    """

    def __init__(
        self,
        about: About,
        fault: Callable[[Fault], bytes],
        stop_reason: Callable[[ChatReply], str],
    ) -> None:
        self._about = about
        self._fault = fault
        self._stop_reason = stop_reason
        self._index = -1
        self._open = ""
        """Kind of the open block."""

    def begin(self) -> bytes:
        """message_start, with the tokens of the row so far: the end says how many there were."""
        usage = {"input_tokens": self._about.prompt_tokens_hint, "output_tokens": 0}
        message: dict[str, Any] = {
            "id": message_id(self._about),
            "type": "message",
            "role": "assistant",
            "model": self._about.asked.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return event({"type": "message_start", "message": message}, "message_start")

    def deltas(self, deltas: Sequence[ReplyDelta]) -> bytes:
        """content_block_start, content_block_delta, content_block_stop."""
        written: list[bytes] = []
        for delta in deltas:
            if delta.reasoning:
                start = {"type": "thinking", "thinking": "", "signature": ""}
                written += self._switch("thinking", start)
                written.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
            if delta.content:
                written += self._switch("text", {"type": "text", "text": ""})
                written.append(self._delta({"type": "text_delta", "text": delta.content}))
            for call in delta.tool_calls:
                use = {"type": "tool_use", "id": call.call_id, "name": call.name}
                written += [*self._stop(), self._start("tool_use", {**use, "input": {}})]
                said = {"type": "input_json_delta", "partial_json": call.arguments}
                written += [self._delta(said), *self._stop()]
        return b"".join(written)

    def end(self, reply: ChatReply) -> bytes:
        """message_delta with stop reason and usage, message_stop."""
        written: list[bytes] = []
        if self._index < 0:
            written.append(self._start("text", {"type": "text", "text": ""}))
        written += self._stop()
        change = {"stop_reason": self._stop_reason(reply), "stop_sequence": None}
        usage = usage_of(reply.usage)
        told = {"type": "message_delta", "delta": change, "usage": usage}
        written.append(event(told, "message_delta"))
        written.append(event({"type": "message_stop"}, "message_stop"))
        return b"".join(written)

    def fault(self, fault: Fault) -> bytes:
        """An error event."""
        return b"event: error\ndata: %s\n\n" % self._fault(fault)

    def _switch(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        return [] if self._open == kind else [*self._stop(), self._start(kind, block)]

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._open = kind
        told = {"type": "content_block_start", "index": self._index, "content_block": block}
        return event(told, "content_block_start")

    def _delta(self, delta: dict[str, Any]) -> bytes:
        told = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(told, "content_block_delta")

    def _stop(self) -> list[bytes]:
        if not self._open:
            return []
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        last = [self._delta(signed)] if self._open == "thinking" else []
        self._open = ""
        told = {"type": "content_block_stop", "index": self._index}
        return [*last, event(told, "content_block_stop")]
