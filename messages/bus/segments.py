"""The shared memory one process writes: files in /dev/shm, named after the run, used again.

Fresh memory costs three times a copy, so a segment that nobody needs any more is kept for the next
message, mapped and with all its pages. It is needed while a message refers to it (a loan, see
`lending`) and while its owner still holds the payload it made there (see `allotting`). A doomed
segment may be read by somebody who will never say when he is done: its name is removed and it is
never written again, and the kernel frees the bytes with the last mapping.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from milepost.messages.bus.borrowing import FOLDER, Mapping, segment_prefix
from milepost.messages.bus.memmove import populate

ALIGNMENT: Final = 64
UNIT_BYTES: Final = 1 << 20
"""Sizes of segments are multiples of it, so that one fits the next message of about its size."""
POOL_BYTES_MAX: Final = 256 << 20
"""Free segments kept for the next message, where less than this is in use: otherwise as much as is
in use, since a weight version needs what the one before it gave back. The last one always stays."""
IDLE_S: Final = 300.0
"""Free segments unused for this long are removed; training steps are seldom longer."""


def round_up(nbytes: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-nbytes // to) * to


class Segment:
    """One file of shared memory with a name of ours."""

    __slots__ = (
        "borrowed",
        "buffers",
        "doomed",
        "filled",
        "for_payload",
        "held",
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
        self.held = False
        """Somebody in this process refers to its memory."""
        self.for_payload = False
        """Given to a sender of this process, and in use since."""
        self.doomed = False
        self.idle_since = 0.0


@dataclass(slots=True)
class Segments:
    """All segments of one process, from any thread.

    Attributes:
        owner: name and incarnation: whoever finds this process dead removes what is left of it.
        free: not needed by anybody, oldest first.
    """

    run_id: str
    clock: Callable[[], float]
    folder: Path = FOLDER
    owner: str = "nobody.0"
    free: list[Segment] = field(default_factory=list)
    _all: dict[str, Segment] = field(default_factory=dict)
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _count: int = 0
    _closed: bool = False
    _lock: Lock = field(default_factory=Lock)

    @property
    def usable(self) -> bool:
        """Whether this host has shared memory to name."""
        return self.folder.is_dir() and "/" not in self.run_id + self.owner

    def take(self, size: int) -> Segment:
        """A segment of at least this size for a message: until its last loan ends."""
        with self._lock:
            return self._take(size)

    def take_held(self, size: int, bytes_max: int) -> Segment | None:
        """One for a payload made in it: until `let_go`, and the end of its last loan after that.

        Args:
            size: in bytes.
            bytes_max: of all such that are in use; None beyond it, and after `close`.
        """
        with self._lock:
            if self._closed or self._held_bytes() + size > bytes_max:
                return None
            segment = self._take(size)
            segment.held = segment.for_payload = True
            return segment

    def _take(self, size: int) -> Segment:
        size_max = max(4 * size, UNIT_BYTES)
        fitting = [one for one in self.free if size <= one.size <= size_max]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self.free.remove(segment)
        else:
            segment = Segment(self._name(), round_up(max(size, 1), UNIT_BYTES))
            self._all[segment.name] = segment
        segment.filled = False
        return segment

    def relay(self, mapping: Mapping) -> Segment | None:
        """A second name for what somebody lends us; None if it cannot be given one."""
        with self._lock:
            name = self._name()
            try:
                (self.folder / name).hardlink_to(self.folder / mapping.name)
            except OSError:
                return None
            segment = self._all[name] = Segment(name, len(mapping), mapping)
            return segment

    def _name(self) -> str:
        self._count += 1
        return f"{segment_prefix(self.run_id)}{self.owner}-{self._token}-{self._count}"

    def map(self, segment: Segment) -> bool:
        """Give a segment its memory, if it has none yet. False when the host has no room for it.

        May take long: not on the event loop.
        """
        if segment.mapping is not None:
            return True
        path = self.folder / segment.name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return False
        try:
            # Without it, a full /dev/shm kills the process at the first write (SIGBUS).
            os.posix_fallocate(descriptor, 0, segment.size)
            mapping = mmap.mmap(descriptor, segment.size)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)
        populate(mapping)
        with self._lock:
            segment.mapping = mapping
            if self._closed:
                self._unlink(segment)
        return True

    # ---- the end of a need ---------------------------------------------------------------

    def borrow(self, segment: Segment) -> None:
        """One more message refers to it."""
        with self._lock:
            segment.loans += 1

    def end_loan(self, segment: Segment) -> None:
        """One message less refers to it."""
        with self._lock:
            segment.loans -= 1
            self._settle(segment)

    def let_go(self, segment: Segment) -> None:
        """Nobody in this process refers to its memory any more."""
        with self._lock:
            segment.held = False
            self._settle(segment)

    def _settle(self, segment: Segment) -> None:
        if segment.loans:
            return
        if segment.doomed:
            self._unlink(segment)
        if segment.held:
            return
        segment.buffers = ()
        segment.for_payload = False
        segment.idle_since = self.clock()
        if segment.doomed or segment.mapping is None or self._closed:
            self._remove(segment)
            return
        self.free.append(segment)
        kept_max = max(POOL_BYTES_MAX, self._bytes() - self._free_bytes())
        while len(self.free) > 1 and self._free_bytes() > kept_max:
            self._remove(self.free.pop(0))

    def _remove(self, segment: Segment) -> None:
        self._all.pop(segment.name, None)
        segment.borrowed = None
        # Not closed: a payload in the middle of being freed may still export it.
        segment.mapping = None
        self._unlink(segment)

    def _unlink(self, segment: Segment) -> None:
        (self.folder / segment.name).unlink(missing_ok=True)

    # ---- time ----------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        with self._lock:
            return min((one.idle_since for one in self.free), default=float("inf")) + IDLE_S

    def tick(self, now: float) -> None:
        """Remove what lies idle."""
        with self._lock:
            for segment in [one for one in self.free if one.idle_since + IDLE_S <= now]:
                self.free.remove(segment)
                self._remove(segment)

    def close(self) -> None:
        """Remove every name. Readers and payloads keep what they refer to."""
        with self._lock:
            self._closed = True
            self.free.clear()
            for segment in list(self._all.values()):
                self._remove(segment)

    def _bytes(self) -> int:
        return sum(one.size for one in self._all.values() if one.mapping is not None)

    def _held_bytes(self) -> int:
        return sum(one.size for one in self._all.values() if one.for_payload)

    def _free_bytes(self) -> int:
        return sum(one.size for one in self.free)

    @property
    def num_bytes(self) -> int:
        """Bytes of all segments that exist."""
        with self._lock:
            return self._bytes()

    @property
    def held_bytes(self) -> int:
        """Of these, what payloads are made in, here or with receivers."""
        with self._lock:
            return self._held_bytes()
