"""Large buffers between processes of one host: the bytes in shared memory, the name on the socket.

A lender copies the buffers of one message into a segment (a file in /dev/shm, named after the
run) and sends the name; a borrower (`borrowing`) maps it and reads in place. A loan is over when
the message is acknowledged *and* the borrower gave it back; only then may the segment be used
again, because fresh memory costs three times a copy. A loan that cannot end that way (peer dead,
deadline, lease over) dooms the segment: its name is removed and it is never written again, so a
reader that still has it keeps valid bytes and the kernel frees them with the last mapping. What a
killed lender leaves behind carries the run's prefix, for the reaper.

What came in shared memory and is sent on is not copied again: its segment gets a second name of
ours (a hard link), which lives as long as our loan, whatever the first lender does with its own.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from milepost.messages.bus.borrowing import FOLDER, Mapping, segment_prefix
from milepost.messages.bus.memmove import copy_unlocked, offset_in
from milepost.messages.layout import Place

ALIGNMENT: Final = 64
POOL_BYTES_MAX: Final = 256 << 20
"""Free segments kept for the next message; a larger one is kept while it is the only one."""
PASSED_ON_BYTES_MIN: Final = 1 << 16
"""Smaller buffers are copied: the receiver would map a whole segment for each."""
IDLE_S: Final = 30.0
"""Free segments unused for this long are removed."""


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to


class Segment:
    """One file of shared memory with a name of ours."""

    __slots__ = (
        "borrowed",
        "buffers",
        "doomed",
        "filled",
        "idle_since",
        "loans",
        "mapping",
        "name",
        "size",
    )

    def __init__(self, name: str, size: int, borrowed: Mapping | None = None) -> None:
        self.name = name
        self.size = size
        self.borrowed = borrowed
        """Somebody else wrote it, and lends it to us as long as we keep this."""
        self.mapping: mmap.mmap | None = None
        self.buffers: tuple[memoryview, ...] = ()
        """What we copied or shall copy into it, while a message with it is not acknowledged."""
        self.filled = False
        self.loans = 0
        self.doomed = False
        self.idle_since = 0.0


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
    """The segments this process writes. On the event loop's thread, except `fill`."""

    run_id: str
    clock: Callable[[], float]
    lease_s: float
    folder: Path = FOLDER
    loans: dict[int, Loan] = field(default_factory=dict)
    """By id of the message."""
    free: list[Segment] = field(default_factory=list)
    _segments: dict[str, Segment] = field(default_factory=dict)
    owner: str = "nobody.0"
    """Name and incarnation: whoever finds this process dead removes what is left of it."""
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _count: int = 0

    @property
    def usable(self) -> bool:
        """Whether this host has shared memory to name."""
        return self.folder.is_dir() and "/" not in self.run_id + self.owner

    def lend(self, message_id: int, buffers: Sequence[memoryview], to: str) -> Loan:
        """Choose places for the buffers of this message; `fill` copies what has to be."""
        places: list[Place | None] = [self._passed_on(buffer) for buffer in buffers]
        own = tuple(b for b, place in zip(buffers, places, strict=True) if place is None)
        offsets, size = [], 0
        for buffer in own:
            offsets.append(size)
            size += _round_up(buffer.nbytes, ALIGNMENT)
        fresh = None
        if own:
            fresh = self._same(own) or self._fresh(size)
            fresh.buffers = own
        mine = iter(offsets)
        settled = [
            Place(fresh.name, next(mine)) if place is None and fresh is not None else place
            for place in places
        ]
        known = [place for place in settled if place is not None]
        segments = [self._segments[name] for name in dict.fromkeys(one.segment for one in known)]
        for segment in segments:
            segment.loans += 1
        loan = self.loans[message_id] = Loan(to, known, fresh, offsets, segments, self.clock())
        return loan

    def _passed_on(self, buffer: memoryview) -> Place | None:
        """The place of a buffer that lies in a segment lent to us; None if it must be copied."""
        mapping = buffer.obj
        if not isinstance(mapping, Mapping) or buffer.nbytes < PASSED_ON_BYTES_MIN:
            return None
        for segment in self._segments.values():
            if segment.borrowed is mapping:
                return Place(segment.name, offset_in(mapping, buffer))
        name = self._name()
        try:
            (self.folder / name).hardlink_to(self.folder / mapping.name)
        except OSError:
            return None
        self._segments[name] = Segment(name, len(mapping), mapping)
        return Place(name, offset_in(mapping, buffer))

    def _name(self) -> str:
        self._count += 1
        return f"{segment_prefix(self.run_id)}{self.owner}-{self._token}-{self._count}"

    def _same(self, buffers: tuple[memoryview, ...]) -> Segment | None:
        """A segment with these very buffers: one copy serves every receiver of a message."""
        for segment in self._segments.values():
            if (
                not segment.doomed
                and len(segment.buffers) == len(buffers)
                and all(a is b for a, b in zip(segment.buffers, buffers, strict=True))
            ):
                return segment
        return None

    def _fresh(self, size: int) -> Segment:
        fitting = [one for one in self.free if size <= one.size <= 4 * size]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self.free.remove(segment)
        else:
            name = self._name()
            segment = Segment(name, _round_up(max(size, 1), 1 << 20))
            self._segments[name] = segment
        segment.filled = False
        return segment

    def fill(self, loan: Loan) -> bool:
        """Copy the buffers in; on a worker thread. False when the host has no room for them."""
        segment = loan.fresh
        if segment is None or segment.filled:
            return True
        if segment.mapping is None:
            segment.mapping = self._create(segment)
            if segment.mapping is None:
                return False
        for offset, buffer in zip(loan.copied, segment.buffers, strict=True):
            copy_unlocked(segment.mapping, offset, buffer)
        segment.filled = True
        return True

    def _create(self, segment: Segment) -> mmap.mmap | None:
        path = self.folder / segment.name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            # Without it, a full /dev/shm kills the process at the first write (SIGBUS).
            os.posix_fallocate(descriptor, 0, segment.size)
            return mmap.mmap(descriptor, segment.size)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        finally:
            os.close(descriptor)

    # ---- the end of a loan ---------------------------------------------------------------

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
            segment.loans -= 1
            if segment.loans == 0:
                self._unused(segment)

    def _unused(self, segment: Segment) -> None:
        segment.buffers = ()
        segment.idle_since = self.clock()
        if segment.doomed or segment.mapping is None:
            self._remove(segment)
            return
        self.free.append(segment)
        while len(self.free) > 1 and sum(one.size for one in self.free) > POOL_BYTES_MAX:
            self._remove(self.free.pop(0))

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        idle = [one.idle_since + IDLE_S for one in self.free]
        leases = [one.since + self.lease_s for one in self.loans.values() if one.acknowledged]
        return min((*idle, *leases), default=float("inf"))

    def tick(self, now: float) -> None:
        """End leases; remove what lies idle."""
        for message_id, loan in list(self.loans.items()):
            if loan.acknowledged and loan.since + self.lease_s <= now:
                self._doom(message_id)
        for segment in [one for one in self.free if one.idle_since + IDLE_S <= now]:
            self.free.remove(segment)
            self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        self._segments.pop(segment.name, None)
        segment.borrowed = None
        if segment.mapping is not None:
            segment.mapping.close()
            segment.mapping = None
        (self.folder / segment.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove every name. Readers keep what they have mapped."""
        self.loans.clear()
        self.free.clear()
        for segment in list(self._segments.values()):
            self._remove(segment)

    @property
    def num_bytes(self) -> int:
        """Bytes of all segments that exist."""
        return sum(one.size for one in self._segments.values() if one.mapping is not None)
