"""Reading the logs of actors: the last lines of a dead one, a piece for a client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 16384
LINE_CHARS_MAX: Final = 400


def log_path(run_folder: Path, actor: str) -> Path:
    """Log of one actor."""
    return run_folder / "logs" / f"{actor}.log"


def last_lines(path: Path, since: int = 0, lines_max: int = TAIL_LINES) -> tuple[str, ...]:
    """The last lines of a log.

    Args:
        path: the file; a missing one has no lines.
        since: byte at which the present incarnation began to write.
        lines_max: how many at most.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return ()
    data, _ = read_piece(path, max(since, size - TAIL_BYTES), TAIL_BYTES)
    lines = data.decode("utf-8", errors="replace").splitlines()
    return tuple(line[:LINE_CHARS_MAX] for line in lines[-lines_max:])


def read_piece(path: Path, offset: int, bytes_max: int) -> tuple[bytes, int]:
    """Bytes of a growing file, and where to go on.

    Args:
        path: the file.
        offset: first byte; negative for the end of the file, as far back as `bytes_max`.
        bytes_max: most bytes to read.

    Raises:
        FileNotFoundError: no such file.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - bytes_max) if offset < 0 else min(offset, size)
        file.seek(start)
        data = file.read(bytes_max)
    return data, start + len(data)
