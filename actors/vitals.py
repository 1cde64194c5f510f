"""What a process knows about its own body: memory, processor time, uptime."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

_SINCE: Final = re.compile(r"\bsince (\d+\.\d)\b")
SHARE_S_MIN: Final = 0.2
"""Of a shorter time than this, whoever asks twice would be told the share of asking itself."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Vitals:
    """Reads the process's own figures; cheap enough for every heartbeat."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._read_s = self._started_s
        self._cpu_s = time.process_time()
        self._share = 0.0

    def read(self) -> dict[str, float]:
        """Resident memory in MiB, share of one core in the last while, uptime in seconds."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        if now_s - self._read_s >= SHARE_S_MIN:
            self._share = (cpu_s - self._cpu_s) / (now_s - self._read_s)
            self._read_s, self._cpu_s = now_s, cpu_s
        return {
            "rss_mib": round(_resident_bytes() / 2**20, 1),
            "cpu_share": round(self._share, 3),
            "cpu_s": round(cpu_s, 3),
            "uptime_s": round(now_s - self._started_s, 3),
        }


def for_people(words: str, clock_s: float) -> str:
    """What a core says, with times that a person can read.

    Args:
        words: a core's `working_on`; its `since 15801.7` is on the event loop's clock.
        clock_s: that clock now.

    Returns:
        The words with the time of day and the age: `since 14:05:31 (2.5 s)`.
    """
    now_s = time.time()

    def told(found: re.Match[str]) -> str:
        age_s = max(0.0, clock_s - float(found[1]))
        return f"since {time.strftime('%H:%M:%S', time.localtime(now_s - age_s))} ({age_s:.1f} s)"

    return _SINCE.sub(told, words)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * _PAGE_BYTES
