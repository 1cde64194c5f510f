"""Watches how late the event loop wakes up: what every message and every timer pays."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from milepost.messages.bus.statistics import LoopDelay

INTERVAL_S: Final = 0.1
KEPT: Final = 600
"""Samples: the last minute of a loop that is never late."""


class LoopDelayWatcher:
    """One timer that measures its own lateness. One for each event loop, shared by its users."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._delays: deque[float] = deque(maxlen=KEPT)
        self._users = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """One more user."""
        self._users += 1
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """One user less; without any the timer ends."""
        self._users -= 1
        if self._users == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_running(self) -> bool:
        """Whether it measures."""
        return self._timer is not None

    def _arm(self) -> None:
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        self._delays.append(max(0.0, self._loop.time() - self._due))
        self._arm()

    def delay(self) -> LoopDelay:
        """Median, 99th percentile and maximum of the samples kept."""
        ordered = sorted(self._delays)
        if not ordered:
            return LoopDelay(p50_ms=0.0, p99_ms=0.0, max_ms=0.0)
        last = len(ordered) - 1
        return LoopDelay(
            p50_ms=round(1000 * ordered[last // 2], 3),
            p99_ms=round(1000 * ordered[round(last * 0.99)], 3),
            max_ms=round(1000 * ordered[-1], 3),
        )


_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopDelayWatcher] = WeakKeyDictionary()


def watcher_of(loop: asyncio.AbstractEventLoop) -> LoopDelayWatcher:
    """The watcher of this loop."""
    watcher = _watchers.get(loop)
    if watcher is None:
        watcher = _watchers[loop] = LoopDelayWatcher(loop)
    return watcher
