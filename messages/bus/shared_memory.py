"""Large buffers between processes of one host: the bytes in shared memory, the name on the socket.

A lender copies the buffers of one message into a segment (a file in /dev/shm, named after the
run) and sends the name; a borrower maps it and reads in place. A loan is over when the message
is acknowledged *and* the borrower gave the mapping up; only then may the segment be used again,
because fresh memory costs three times a copy. A loan that cannot end that way (peer dead, deadline,
lease over) dooms the segment: its name is removed and it is never written again, so a reader that
still has it keeps valid bytes and the kernel frees them with the last mapping. What a killed
lender leaves behind carries the run's prefix, for the reaper.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from weakref import ref

from milepost.messages.bus.memmove import copy_unlocked
from milepost.messages.errors import ProtocolError
from milepost.messages.layout import Opener, Place

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps it
ALIGNMENT: Final = 64
POOL_BYTES_MAX: Final = 256 << 20
"""Free segments kept for the next message; a larger one is kept while it is the only one."""
IDLE_S: Final = 30.0
"""Free segments unused for this long are removed."""


def segment_prefix(run_id: str) -> str:
    """How the names of all shared memory of a run begin."""
    return f"milepost-{run_id}-"


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to


class Segment:
    """One file of shared memory, written by this process only."""

    __slots__ = ("buffers", "doomed", "filled", "idle_since", "loans", "mapping", "name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.mapping: mmap.mmap | None = None
        self.buffers: tuple[memoryview, ...] = ()
        """What it holds, while some message with it is not acknowledged yet."""
        self.filled = False
        self.loans = 0
        self.doomed = False
        self.idle_since = 0.0


@dataclass(slots=True)
class Loan:
    """One message that refers to a segment."""

    segment: Segment
    places: list[Place]
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
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _count: int = 0

    @property
    def usable(self) -> bool:
        """Whether this host has shared memory to name."""
        return self.folder.is_dir() and "/" not in self.run_id

    def lend(self, message_id: int, buffers: Sequence[memoryview]) -> Loan:
        """Choose a segment for the buffers of this message; `fill` puts them there."""
        wanted = tuple(buffers)
        offsets, size = [], 0
        for buffer in wanted:
            offsets.append(size)
            size += _round_up(buffer.nbytes, ALIGNMENT)
        segment = self._same(wanted) or self._fresh(size)
        segment.buffers = wanted
        segment.loans += 1
        places = [Place(segment.name, offset) for offset in offsets]
        loan = self.loans[message_id] = Loan(segment, places, self.clock())
        return loan

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
            self._count += 1
            name = f"{segment_prefix(self.run_id)}{self._token}-{self._count}"
            segment = Segment(name, _round_up(max(size, 1), 1 << 20))
            self._segments[name] = segment
        segment.filled = False
        return segment

    def fill(self, loan: Loan) -> bool:
        """Copy the buffers in; on a worker thread. False when the host has no room for them."""
        segment = loan.segment
        if segment.filled:
            return True
        if segment.mapping is None:
            segment.mapping = self._create(segment)
            if segment.mapping is None:
                return False
        for place, buffer in zip(loan.places, segment.buffers, strict=True):
            copy_unlocked(segment.mapping, place.offset, buffer)
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
            loan.segment.doomed = True
            self._end(message_id)
            return
        loan.acknowledged = True
        if not any(
            other.segment is loan.segment and not other.acknowledged
            for other in self.loans.values()
        ):
            loan.segment.buffers = ()
        if loan.given_back:
            self._end(message_id)

    def give_back(self, message_id: int) -> None:
        """The receiver does not read the message's buffers any more."""
        loan = self.loans.get(message_id)
        if loan is not None:
            loan.given_back = True
            if loan.acknowledged:
                self._end(message_id)

    def _end(self, message_id: int) -> None:
        segment = self.loans.pop(message_id).segment
        segment.loans -= 1
        if segment.loans:
            return
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
                loan.segment.doomed = True
                self._end(message_id)
        for segment in [one for one in self.free if one.idle_since + IDLE_S <= now]:
            self.free.remove(segment)
            self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        self._segments.pop(segment.name, None)
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


class Mapping(mmap.mmap):
    """A segment of another process, mapped for one message. Writable here, changes stay here."""


class Borrower:
    """Maps segments of other processes; tells `given_back` when nothing refers to them any more.

    Args:
        run_id: only names of this run are opened.
        given_back: called with the token of the message, on any thread.
        folder: where segments lie.
    """

    def __init__(
        self, run_id: str, given_back: Callable[[Any], None], folder: Path = FOLDER
    ) -> None:
        self._prefix = segment_prefix(run_id)
        self._given_back = given_back
        self._folder = folder
        self._mapped: dict[int, ref[Mapping]] = {}

    def opener(self, token: object) -> Opener:
        """Maps what one message refers to."""
        mappings: dict[str, Mapping] = {}

        def open_segment(name: str, offset: int, nbytes: int) -> memoryview:
            mapping = mappings.get(name)
            if mapping is None:
                if mappings:
                    raise ProtocolError(f"a message in two segments: {name} and another")
                mapping = mappings[name] = self._map(name, token)
            if offset + nbytes > len(mapping):
                raise ProtocolError(
                    f"bulk ends at byte {offset + nbytes} of shared memory {name}, "
                    f"which has {len(mapping)}"
                )
            return memoryview(mapping)[offset : offset + nbytes]

        return open_segment

    def _map(self, name: str, token: object) -> Mapping:
        if not name.startswith(self._prefix) or "/" in name:
            raise ProtocolError(f"shared memory {name!r:.80} is not of this run ({self._prefix}*)")
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ProtocolError(f"shared memory {name} is gone: {error.strerror}") from error
        try:
            mapping = Mapping(descriptor, 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"shared memory {name} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        key = id(mapping)

        def gone(_: ref[Mapping]) -> None:
            self._mapped.pop(key, None)
            with contextlib.suppress(RuntimeError):
                self._given_back(token)

        self._mapped[key] = ref(mapping, gone)
        return mapping

    @property
    def num_mapped(self) -> int:
        """Segments of other processes that something here still refers to."""
        return len(self._mapped)
