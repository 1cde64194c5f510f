"""How often frames come: as often as they are wanted, and less where they take too much."""

from __future__ import annotations

from typing import Final

SHARE_MAX: Final = 0.004
"""Of one processor, for frames that nobody asked for by a key."""
PAUSE_S_MAX: Final = 2.0
"""However dear a frame was, the next one comes after this."""


class Pace:
    """Frames of a monitor take the processor from the run that it shows.

    On an idle machine a frame costs a few milliseconds, on one whose caches others fill several
    times as many; so the next one waits until the last one is no more than `share_max` of the time.
    """

    def __init__(self, share_max: float = SHARE_MAX, pause_s_max: float = PAUSE_S_MAX) -> None:
        self._share_max = share_max
        self._pause_s_max = pause_s_max
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether a frame may come now, in monotonic seconds."""
        return now_s >= self._next_s

    def drew(self, began_s: float, cpu_s: float) -> None:
        """A frame that began then took so much processor time."""
        self._next_s = began_s + min(self._pause_s_max, cpu_s / self._share_max)
