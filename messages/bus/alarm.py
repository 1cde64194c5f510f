"""One timer that rings at the earliest time anybody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

RESOLUTION_S: Final = 0.002
"""What is due within this time of a ring waits for the next one."""
HELD_S: Final = 0.5
"""A ring as late as this: the process was stopped, or its machine, or its loop was held."""
CATCH_UP_S: Final = 0.1
"""What arrived meanwhile is read first: an answer that lies in the socket is not a late one."""


class Alarm:
    """Rings once at or after the earliest time given to `wake`.

    Args:
        loop: the event loop.
        ring: does what is due; returns when to ring again (infinity: when woken).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[float], float]) -> None:
        self._loop = loop
        self._ring = ring
        self._due = float("inf")
        self._catches_up = False
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, due: float) -> None:
        """Ring at this time of the loop's clock, unless an earlier ring comes first."""
        if due >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._rings)

    def _rings(self) -> None:
        self._timer = None
        now = self._loop.time()
        was_held = now - self._due > HELD_S
        self._due = float("inf")
        # Once only: what is due rings in the end also on a loop that is always late.
        self._catches_up = was_held and not self._catches_up
        if self._catches_up:
            self.wake(now + CATCH_UP_S)
            return
        due = self._ring(now)
        if due != float("inf"):
            self.wake(max(due, now + RESOLUTION_S))

    def cancel(self) -> None:
        """Never ring again."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = float("-inf")
