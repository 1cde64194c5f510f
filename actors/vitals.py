"""What a process knows about its own body: memory, processor time, uptime."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Vitals:
    """Reads the process's own figures; cheap enough for every heartbeat."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._read_s = self._started_s
        self._cpu_s = time.process_time()

    def read(self) -> dict[str, float]:
        """Resident memory in MiB, share of one core since the last reading, uptime in seconds."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        share = (cpu_s - self._cpu_s) / max(now_s - self._read_s, 1e-9)
        self._read_s, self._cpu_s = now_s, cpu_s
        return {
            "rss_mib": round(_resident_bytes() / 2**20, 1),
            "cpu_share": round(share, 3),
            "cpu_s": round(cpu_s, 3),
            "uptime_s": round(now_s - self._started_s, 1),
        }


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * _PAGE_BYTES
