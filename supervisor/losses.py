"""Sampled tokens that died with a process: how many, by its last heartbeat, and who is told.

Every actor that holds sampled tokens nobody else knows of says how many in its statistics, as
`tokens_at_risk`, and what it has not told the buffer yet as `accounts_untold`. When it dies, the
buffer hears of the account `lost_with_ACTOR`. What was sampled after the last heartbeat, a second
before the death at most, is in no count at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from milepost.messages.buffer import TokensAccounted
from milepost.messages.supervisor import Heartbeat
from milepost.supervisor.book import Book
from milepost.supervisor.events import TellChild
from milepost.supervisor.states import Child, Running

BUFFER: Final = "buffer"
LOST_AT_RESUME: Final = "lost_at_resume"


@dataclass(slots=True)
class Losses:
    """What the buffer is to be told as soon as it hears."""

    book: Book
    pending: Counter[str] = field(default_factory=Counter)
    _counted: dict[str, Heartbeat] = field(default_factory=dict)
    """Name -> heartbeat by which its last death was counted."""

    def died(self, child: Child) -> None:
        """A process is gone, and what it said last is all that is known of it."""
        last = child.heartbeat
        if last is None or last is self._counted.get(child.name):
            return  # it died again before its first word: there was nothing new to lose
        self._counted[child.name] = last
        self._lost(f"lost_with_{child.name}", last.statistics)

    def resumed(self, statistics: Mapping[str, Mapping[str, Any]]) -> None:
        """The run goes on from a checkpoint: nothing that its actors held at its end came along."""
        for each in statistics.values():
            self._lost(LOST_AT_RESUME, each)

    def _lost(self, account: str, statistics: Mapping[str, Any]) -> None:
        self.pending[account] += int(statistics.get("tokens_at_risk", 0))
        self.pending.update(statistics.get("accounts_untold", {}))

    def tell(self) -> None:
        """Tell the buffer, if there is anything to tell and it is there to hear."""
        tokens = {name: count for name, count in self.pending.items() if count > 0}
        buffer = self.book.children.get(BUFFER)
        if tokens and buffer is not None and isinstance(buffer.state, Running):
            self.pending.clear()
            self.book.order(TellChild(BUFFER, TokensAccounted(tokens=tokens)))

    def not_told(self, message: TokensAccounted) -> None:
        """It did not take that."""
        self.pending.update(message.tokens)
