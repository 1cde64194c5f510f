"""Large buffers between processes of one host: the bytes in shared memory, the name on the socket.

A lender copies the buffers of one message into a segment (a file in /dev/shm, named after the
run) and sends the name; a borrower (`borrowing`) maps it and reads in place. A loan is over when
the message is acknowledged *and* the borrower gave it back; only then may the segment be used
again (`segments`). A loan that cannot end that way (peer dead, deadline, lease over) dooms the
segment. What a killed lender leaves behind carries the run's prefix, for the reaper.

What its sender made in shared memory (`allotting`) is lent as it lies, without a copy. What came in
shared memory and is sent on is not copied again either: its segment gets a second name of ours (a
hard link), which lives as long as our loan, whatever the first lender does with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from milepost.messages.bus.allotting import Allotments
from milepost.messages.bus.borrowing import Mapping
from milepost.messages.bus.memmove import copy_unlocked, offset_in
from milepost.messages.bus.segments import ALIGNMENT, Segment, Segments, round_up
from milepost.messages.layout import Place

PASSED_ON_BYTES_MIN: Final = 1 << 16
"""Smaller buffers are copied: the receiver would map a whole segment for each."""


@dataclass(slots=True)
class Loan:
    """One message that refers to segments."""

    to: str
    """Name of the receiver."""
    places: list[Place]
    """Of each buffer, in order."""
    fresh: Segment | None
    """The one to fill."""
    copied: list[int]
    """Offsets of its buffers."""
    segments: list[Segment]
    """All of them."""
    since: float
    acknowledged: bool = False
    given_back: bool = False


@dataclass(slots=True)
class Lender:
    """The loans of this process. On the event loop's thread, except `fill`.

    Attributes:
        loans: by id of the message.
    """

    segments: Segments
    allotments: Allotments
    clock: Callable[[], float]
    lease_s: float
    loans: dict[int, Loan] = field(default_factory=dict)
    _relayed: dict[int, Segment] = field(default_factory=dict)
    """What is sent on, by identity of the mapping it came in, which it keeps."""

    def lend(self, message_id: int, buffers: Sequence[memoryview], to: str) -> Loan:
        """Choose places for the buffers of this message; `fill` copies what has to be."""
        segments: dict[str, Segment] = {}
        places: list[Place | None] = []
        own: list[memoryview] = []
        for buffer in buffers:
            found = self.allotments.find(buffer) or self._passed_on(buffer)
            if found is None:
                own.append(buffer)
                places.append(None)
            else:
                segment, place = found
                segments[segment.name] = segment
                places.append(place)
        offsets, size = [], 0
        for buffer in own:
            offsets.append(size)
            size += round_up(buffer.nbytes, ALIGNMENT)
        fresh = None
        if own:
            fresh = self._same(own) or self.segments.take(size)
            fresh.buffers = tuple(own)
            segments[fresh.name] = fresh
        mine = iter(offsets)
        settled = [
            Place(fresh.name, next(mine)) if place is None and fresh is not None else place
            for place in places
        ]
        known = [place for place in settled if place is not None]
        for segment in segments.values():
            self.segments.borrow(segment)
        needed = list(segments.values())
        loan = self.loans[message_id] = Loan(to, known, fresh, offsets, needed, self.clock())
        return loan

    def _passed_on(self, buffer: memoryview) -> tuple[Segment, Place] | None:
        """The place of a buffer that lies in a segment lent to us; None if it must be copied."""
        mapping = buffer.obj
        if not isinstance(mapping, Mapping) or buffer.nbytes < PASSED_ON_BYTES_MIN:
            return None
        segment = self._relayed.get(id(mapping))
        if segment is None:
            segment = self.segments.relay(mapping)
            if segment is None:
                return None
            self._relayed[id(mapping)] = segment
        return segment, Place(segment.name, offset_in(mapping, buffer))

    def _same(self, buffers: Sequence[memoryview]) -> Segment | None:
        """A segment with these very buffers: one copy serves every receiver of a message."""
        for loan in self.loans.values():
            segment = loan.fresh
            if (
                segment is not None
                and not segment.doomed
                and len(segment.buffers) == len(buffers)
                and all(a is b for a, b in zip(segment.buffers, buffers, strict=True))
            ):
                return segment
        return None

    def fill(self, loan: Loan) -> bool:
        """Copy the buffers in; on a worker thread. False when the host has no room for them."""
        segment = loan.fresh
        if segment is None or segment.filled:
            return True
        if not self.segments.map(segment):
            return False
        assert segment.mapping is not None
        for offset, buffer in zip(loan.copied, segment.buffers, strict=True):
            copy_unlocked(segment.mapping, offset, buffer)
        segment.filled = True
        return True

    # ---- the end of a loan ---------------------------------------------------------------

    def withdraw(self, message_id: int) -> None:
        """Nobody was told, or will be, where the buffers of this message lie."""
        self._end(message_id)

    def settle(self, message_id: int, *, taken: bool) -> None:
        """The receiver acknowledged the message, or never will."""
        loan = self.loans.get(message_id)
        if loan is None:
            return
        if not taken:
            self._doom(message_id)
            return
        loan.acknowledged = True
        fresh = loan.fresh
        if fresh is not None and not any(
            other.fresh is fresh and not other.acknowledged for other in self.loans.values()
        ):
            fresh.buffers = ()
        if loan.given_back:
            self._end(message_id)

    def give_back(self, message_id: int) -> None:
        """The receiver does not read the message's buffers any more."""
        loan = self.loans.get(message_id)
        if loan is not None:
            loan.given_back = True
            if loan.acknowledged:
                self._end(message_id)

    def peer_restarted(self, peer: str) -> None:
        """What this peer had taken died with it; what it had not taken is sent to the new one."""
        for message_id, loan in list(self.loans.items()):
            if loan.to == peer and loan.acknowledged:
                self._doom(message_id)

    def _doom(self, message_id: int) -> None:
        for segment in self.loans[message_id].segments:
            segment.doomed = True
        self._end(message_id)

    def _end(self, message_id: int) -> None:
        for segment in self.loans.pop(message_id).segments:
            if segment.loans == 1 and segment.borrowed is not None:
                del self._relayed[id(segment.borrowed)]
            self.segments.end_loan(segment)

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        leases = [one.since + self.lease_s for one in self.loans.values() if one.acknowledged]
        return min((self.segments.due, *leases))

    def tick(self, now: float) -> None:
        """End leases; remove what lies idle."""
        for message_id, loan in list(self.loans.items()):
            if loan.acknowledged and loan.since + self.lease_s <= now:
                self._doom(message_id)
        self.segments.tick(now)

    def close(self) -> None:
        """Remove every name. Readers keep what they have mapped, senders what they made."""
        self.loans.clear()
        self._relayed.clear()
        self.segments.close()
