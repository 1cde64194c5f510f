"""The answers that come back on one of our links: in order, each once, no hole unseen."""

from __future__ import annotations

from milepost.messages.bus.delivery import Delivery


class AnswerStream:
    """Where we stand in the stream of one peer's answers."""

    __slots__ = ("_gap_told", "num_duplicates", "received")

    def __init__(self) -> None:
        self.received = 0
        """Every answer up to this number has arrived, or never comes."""
        self._gap_told = 0
        self.num_duplicates = 0

    def restart(self) -> None:
        """The peer is a new process, with a stream of its own."""
        self.received = 0
        self._gap_told = 0

    def take(self, base: int, sequence: int) -> bool:
        """Whether this is the next answer. If not, it is a repeat, or one before it is missing."""
        if base > self.received + 1:
            self.received = base - 1
        if sequence == self.received + 1:
            self.received = sequence
            return True
        if sequence <= self.received:
            self.num_duplicates += 1
        return False

    def is_complete(self, delivery: Delivery) -> bool:
        """Whether nothing is missing of what the peer has sent.

        What is missing may be a refusal, the true end of a tell that `taken` counts as taken.
        """
        if delivery.base > self.received + 1:
            self.received = delivery.base - 1
        return delivery.last <= self.received

    def is_new_gap(self) -> bool:
        """Whether the hole after `received` was not asked for yet; now it is."""
        told = self._gap_told
        self._gap_told = self.received + 1
        return told != self._gap_told

    @property
    def has_gap(self) -> bool:
        """Whether a hole was asked for and is still there."""
        return self._gap_told > self.received
