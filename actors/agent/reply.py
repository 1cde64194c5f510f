"""What the model answered, in the shapes an agent works with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage, FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call.

    Attributes:
        call_id: names the call in its result.
        name: of the tool.
        arguments: the JSON object, parsed; None when the text is none.
        arguments_text: JSON text exactly as sampled.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    arguments_text: str

    def result(self, content: str) -> ChatMessage:
        """The tool message that answers this call."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": content}


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of the model.

    Attributes:
        message: the assistant's message, to be sent back unchanged in the next request.
        finish_reason: `length` when it was cut off: it can be asked for again, not continued.
        usage: token counts.
        versions: weight versions that generated it, in order.
        tool_calls: parsed.
        generation: number of this reply in its session.
        limit: bound of the run that cut it off; empty where your own `tokens_max` did.
    """

    message: ChatMessage
    finish_reason: FinishReason
    usage: Usage
    versions: tuple[int, ...]
    tool_calls: tuple[Call, ...]
    generation: int = 0
    limit: str = ""

    @property
    def text(self) -> str:
        """What the assistant says, without reasoning and calls."""
        return self.message.get("content") or ""


@dataclass(frozen=True, slots=True)
class Part:
    """What a reply that is still being sampled has grown by; the `Reply` that follows has it all.

    Attributes:
        content: of what the assistant says.
        reasoning: of what it thinks.
        tool_calls: whole ones.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Call, ...] = ()


class Parts:
    """Parts on their way to whoever reads them, put together while nobody does."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Something is here."""
        self._content = ""
        self._reasoning = ""
        self._calls: list[dict[str, Any]] = []

    def put(self, content: str, reasoning: str, tool_calls: list[dict[str, Any]]) -> None:
        """The reply has grown."""
        self._content += content
        self._reasoning += reasoning
        self._calls += tool_calls
        self.changed.set()

    def take(self) -> tuple[str, str, list[dict[str, Any]]]:
        """Content, reasoning and calls since the last time."""
        taken = self._content, self._reasoning, self._calls
        self._content, self._reasoning, self._calls = "", "", []
        self.changed.clear()
        return taken

    def take_part(self) -> Part:
        """The same, read."""
        content, reasoning, calls = self.take()
        return Part(content, reasoning, tuple(map(_read_call, calls)))


def read_reply(answer: ChatReply) -> Reply:
    """The reply of an answer."""
    calls = answer.message.get("tool_calls") or ()
    return Reply(
        message=answer.message,
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        versions=answer.versions,
        tool_calls=tuple(_read_call(call) for call in calls),
        generation=answer.generation,
        limit=answer.limit,
    )


def _read_call(call: dict[str, Any]) -> Call:
    text = call["function"]["arguments"]
    try:
        arguments: dict[str, Any] | None = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        arguments = None
    return Call(call["id"], call["function"]["name"], arguments, text)
