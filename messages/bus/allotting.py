"""Payloads made where they can travel from: memory for a sender that is shared from the start.

A payload in ordinary memory is copied once on its way to another process of the host. One that is
made in memory of ours needs no copy: `lending` finds it by its address and sends its place. Such
memory is used again only when nothing in this process refers to it any more, in any form (views,
arrays and tensors over it keep it), and every message that referred to it is over.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Final
from weakref import ref

from milepost.messages.bus.memmove import address_of
from milepost.messages.bus.segments import Segment, Segments
from milepost.messages.layout import Place

ALLOTTED_BYTES_MIN: Final = 1 << 16
"""Smaller payloads are copied: a segment for each would cost more."""


class Allotments:
    """Memory given to senders of this process. Any thread may ask, and let go.

    Args:
        segments: of the process.
        bytes_max: of all memory given that is still in use, here or by receivers.
        dropped: told, on any thread and in the middle of anything, that `collect` has work.
    """

    def __init__(self, segments: Segments, bytes_max: int, dropped: Callable[[], None]) -> None:
        self._segments = segments
        self._bytes_max = bytes_max
        self._dropped = dropped
        self._lock = Lock()
        self._bases: list[int] = []
        """Addresses, ascending."""
        self._given: dict[int, tuple[Segment, ref[Any]]] = {}
        """By address: something here refers to it."""
        self._gone: deque[int] = deque()
        """Addresses that nothing refers to any more."""
        self.num_elsewhere = 0

    def allocate(self, nbytes: int) -> memoryview:
        """Writable bytes with undefined content, aligned to 64 bytes.

        In ordinary memory, aligned to 16, when it is small or there is no room in shared memory.
        """
        self.collect()
        if nbytes < ALLOTTED_BYTES_MIN:
            return memoryview(bytearray(nbytes))
        segment = self._room(nbytes)
        if segment is None:
            self.num_elsewhere += 1
            return memoryview(bytearray(nbytes))
        mapping = segment.mapping
        assert mapping is not None
        base = address_of(mapping)
        # Whatever is made of this memory refers to the array, and the array can be watched.
        whole = (ctypes.c_ubyte * segment.size).from_buffer(mapping)

        def gone(_: ref[Any]) -> None:
            self._gone.append(base)
            self._dropped()

        with self._lock:
            insort(self._bases, base)
            self._given[base] = segment, ref(whole, gone)
        return memoryview(whole).cast("B")[:nbytes]

    def _room(self, nbytes: int) -> Segment | None:
        segment = self._segments.take_held(nbytes, self._bytes_max)
        if segment is None or self._segments.map(segment):
            return segment
        self._segments.let_go(segment)
        return None

    def find(self, buffer: memoryview) -> tuple[Segment, Place] | None:
        """Where a buffer lies; None if it is not in memory of ours, or must not be sent as it is.

        The caller refers to the buffer until it has begun a loan of the segment.
        """
        with self._lock:
            if not self._bases:
                return None
            address = address_of(buffer)
            at = bisect_right(self._bases, address) - 1
            if at < 0:
                return None
            base = self._bases[at]
            segment = self._given[base][0]
            if segment.doomed or address + buffer.nbytes > base + segment.size:
                return None
            return segment, Place(segment.name, address - base)

    def collect(self) -> None:
        """Take back what nothing here refers to any more."""
        with self._lock:
            while self._gone:
                base = self._gone.popleft()
                segment, _ = self._given.pop(base)
                self._bases.remove(base)
                self._segments.let_go(segment)
