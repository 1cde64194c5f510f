"""Copies of live traffic for somebody who looks: bounded, and made only while somebody does.

A tap copies what one bus sends to and gets from some of its peers, each message once, as it is on
the wire: header, body, and the first bytes of each buffer. Nothing is decoded here. It keeps a few
hundred copies until they are read; what finds no room is counted and not copied. Each read renews
its lease, so a reader that is gone costs nothing a few seconds later.
"""

from __future__ import annotations

from collections import deque
from fnmatch import fnmatchcase
from time import time_ns
from typing import Final

from milepost.messages.bus.delivery import Kind
from milepost.messages.bus.host import Host
from milepost.messages.bus.transport import Frames
from milepost.messages.supervisor import Refused, Tapped, TapRead, TrafficCopy

TAPS_MAX: Final = 4
"""Readers of one actor at the same time."""
LEASE_S: Final = 5.0
COPIES_MAX: Final = 512
BYTES_MAX: Final = 1 << 20
"""Of the copies of one tap that were not read."""
BODY_BYTES_MAX: Final = 1 << 16
"""A longer body is told by its size only."""
BUFFER_BYTES_MAX: Final = 4096
"""Copied from the beginning of each buffer."""
BUFFERS_MAX: Final = 16
READ_BYTES_MAX: Final = 1 << 18
"""Of one answer; the rest waits for the next read."""
OWN_TYPES: Final = frozenset({TapRead.__name__, Tapped.__name__})
"""What taps themselves say is not traffic of the run."""


class Tap:
    """What one reader wants, and what was copied for it."""

    __slots__ = ("copies", "dropped", "num_bytes", "until", "wanted")

    def __init__(self, wanted: TapRead, until: float) -> None:
        self.wanted = wanted
        self.until = until
        self.copies: deque[TrafficCopy] = deque()
        self.num_bytes = 0
        self.dropped = 0

    def matches(self, peer: str, *, outgoing: bool) -> bool:
        """Whether a message to or from this peer is wanted."""
        wanted = self.wanted
        return (wanted.sent if outgoing else wanted.received) and fnmatchcase(peer, wanted.peers)

    def keep(self, copy: TrafficCopy) -> None:
        """Keep it for the reader, if there is room."""
        size = _size(copy)
        if len(self.copies) >= COPIES_MAX or self.num_bytes + size > BYTES_MAX:
            self.dropped += 1
            return
        self.copies.append(copy)
        self.num_bytes += size

    def take(self) -> Tapped:
        """What one answer has room for."""
        taken: list[TrafficCopy] = []
        room = READ_BYTES_MAX
        while self.copies and (not taken or _size(self.copies[0]) <= room):
            copy = self.copies.popleft()
            size = _size(copy)
            room -= size
            self.num_bytes -= size
            taken.append(copy)
        dropped, self.dropped = self.dropped, 0
        return Tapped(copies=taken, left=len(self.copies), dropped=dropped)


class Taps:
    """All taps of one bus. While there is none, `Host.copy` is None and nothing is done."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._taps: dict[str, Tap] = {}
        self.due = float("inf")
        """When `tick` has something to do."""

    def read(self, wanted: TapRead) -> Tapped | Refused:
        """What was copied since the last read; opens the tap if it is not open."""
        tap = self._taps.get(wanted.tap)
        if wanted.close:
            self._taps.pop(wanted.tap, None)
            self._settle()
            return tap.take() if tap is not None else Tapped(copies=[])
        until = self._host.clock() + LEASE_S
        if tap is None or tap.wanted != wanted:
            if tap is None and len(self._taps) >= TAPS_MAX:
                return Refused(reason=f"{self._host.name} has {TAPS_MAX} taps already")
            self._taps[wanted.tap] = Tap(wanted, until)
            self._settle()
            return Tapped(copies=[], opened=True)
        tap.until = until
        self._settle()
        return tap.take()

    def tick(self, now: float) -> None:
        """Forget whose reader is gone."""
        for name, tap in list(self._taps.items()):
            if tap.until <= now:
                del self._taps[name]
        self._settle()

    def _settle(self) -> None:
        self._host.copy = self._copy if self._taps else None
        self.due = min((tap.until for tap in self._taps.values()), default=float("inf"))
        if self._taps:
            self._host.wake(self.due)

    def _copy(self, peer: str, type_name: str, kind: Kind, frames: Frames, outgoing: bool) -> None:  # noqa: FBT001
        if type_name in OWN_TYPES:
            return
        wanting = [tap for tap in self._taps.values() if tap.matches(peer, outgoing=outgoing)]
        if not wanting:
            return
        header, body, *buffers = frames
        copy = TrafficCopy(
            at_ns=time_ns(),
            outgoing=outgoing,
            peer=peer,
            kind=kind.name.lower(),
            num_bytes=sum(len(frame) for frame in frames),
            header=bytes(header),
            body=bytes(body) if len(body) <= BODY_BYTES_MAX else b"",
            buffers=[bytes(one[:BUFFER_BYTES_MAX]) for one in buffers[:BUFFERS_MAX]],
        )
        for tap in wanting:
            tap.keep(copy)


def _size(copy: TrafficCopy) -> int:
    return len(copy.header) + len(copy.body) + sum(map(len, copy.buffers))
