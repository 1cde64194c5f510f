"""`previous_response_id`: going on from a response without sending the conversation again.

The session has the history anyway; what is kept here is which messages each response stands for, as
a chain to its beginning. Instructions are not part of it: as with OpenAI, they hold for one request
and are sent again with the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from milepost.messages.shared import ChatMessage

RESPONSES_MAX: Final = 1024
"""Of one session: a turn may be tried again and again."""


@dataclass(frozen=True, slots=True)
class Continued:
    """What one request adds to the response that it goes on from.

    Attributes:
        previous: id of that response; empty: none.
        instructions: of the request.
        messages: its input.
    """

    previous: str
    instructions: str
    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    before: _Said | None
    asked: Continued
    reply: ChatMessage


@dataclass(slots=True)
class Kept:
    """The newest responses of one session."""

    _said: dict[str, _Said] = field(default_factory=dict)

    def history(self, asked: Continued, *, may_branch: bool) -> list[ChatMessage]:
        """Everything that was said up to the response that a request goes on from.

        Args:
            asked: the request.
            may_branch: other instructions begin another conversation; else they are refused.

        Raises:
            TurnRefused: kind bad_request; there is no such response, or the instructions differ.
        """
        if not asked.previous:
            return []
        said = self._said.get(asked.previous)
        if said is None:
            raise TurnRefused(
                "bad_request",
                f"previous_response_id = {asked.previous!r}: this session has no such response "
                f"among its newest {RESPONSES_MAX}, or it was asked for with store = false",
            )
        if asked.instructions != said.asked.instructions and not may_branch:
            raise TurnRefused(
                "bad_request",
                "instructions are not carried over by previous_response_id, and this conversation "
                f"began with {said.asked.instructions[:80]!r}: send them again, or let the "
                "topology have actors.session.history = tree",
            )
        chain = []
        link: _Said | None = said
        while link is not None:
            chain.append(link)
            link = link.before
        return [
            message for link in reversed(chain) for message in (*link.asked.messages, link.reply)
        ]

    def remember(self, response_id: str, asked: Continued, reply: ChatMessage) -> None:
        """A request was answered."""
        self._said[response_id] = _Said(self._said.get(asked.previous), asked, reply)
        if len(self._said) > RESPONSES_MAX:
            del self._said[next(iter(self._said))]
