"""How sampled calls are spelled, for clients that parse arguments and send the value back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.actors.session.matchers import same_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from milepost.messages.shared import ChatMessage


@dataclass(slots=True)
class SampledCalls:
    """The calls of the replies that a record holds.

    A model may write ids of its own, and the same one in several replies: then the value tells them
    apart, and of twins the later one counts.
    """

    _arguments: dict[str, list[str]] = field(default_factory=dict)
    """As they were sampled, by call id."""

    def add(self, reply: ChatMessage) -> None:
        """A reply was committed."""
        for call in reply.get("tool_calls", ()):
            self._arguments.setdefault(call["id"], []).append(call["function"]["arguments"])

    def remove(self, reply: ChatMessage) -> None:
        """A reply was thrown away: nothing can repeat it any more."""
        for call in reply.get("tool_calls", ()):
            arguments = self._arguments[call["id"]]
            arguments.remove(call["function"]["arguments"])
            if not arguments:
                del self._arguments[call["id"]]

    def spelling(self, call_id: str, value: Any) -> str:
        """JSON of a call's arguments: as it was sampled when it is the same value."""
        for arguments in reversed(self._arguments.get(call_id, ())):
            if same_json(msgspec.json.decode(arguments), value):
                return arguments
        return msgspec.json.encode(value).decode()

    def __len__(self) -> int:
        """How many calls."""
        return sum(map(len, self._arguments.values()))


def num_calls(replies: Iterable[ChatMessage]) -> int:
    """How many calls these make, all together."""
    return sum(len(reply.get("tool_calls", ())) for reply in replies)
