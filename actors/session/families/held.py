"""What parsers of streamed replies share: text that is held back, and what was read so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from milepost.actors.session.families.base import ParsedReply, ReplyDelta

if TYPE_CHECKING:
    from milepost.messages.shared import ToolCall


class HeldText(ABC):
    """A `ReplyParser` that gives out only what nothing later can turn into something else.

    `_advance` takes what it can from the beginning of `_held`, adds to `_content`, `_reasoning` and
    `_calls`, and puts what is to be given out into `_deltas`.
    """

    def __init__(self) -> None:
        self._held = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._deltas: list[ReplyDelta] = []
        self._finished = False

    def feed(self, text: str) -> list[ReplyDelta]:
        """What `text` adds."""
        assert not self._finished, "a finished parser was fed"
        self._held += text
        return self._advance(final=False)

    def finish(self) -> list[ReplyDelta]:
        """What was held back adds; the stop token itself is no part of the text."""
        assert not self._finished, "a parser was finished twice"
        deltas = self._advance(final=True)
        self._finished = True
        return deltas

    def reply(self) -> ParsedReply:
        """All that was read."""
        assert self._finished, "the reply was asked for before its end"
        return ParsedReply("".join(self._content), "".join(self._reasoning), tuple(self._calls))

    def read(self, text: str) -> ParsedReply:
        """A whole reply, of which nothing has to be held back."""
        self._held += text
        self.finish()
        return self.reply()

    @abstractmethod
    def _advance(self, *, final: bool) -> list[ReplyDelta]:
        """Read on; `final`: nothing comes any more, so nothing is held back."""
