"""A registry without what is over: a lease renewed for a week is one line, not a hundred thousand.

The new file is whole, and on disk, before it takes the old one's name: at any moment, also after a
kill or a power cut, that name leads to all that the run owns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from milepost.supervisor.cleanup.processes import Identity

GROWN_BYTES_MIN: Final = 1 << 16
"""A smaller registry is left as it is."""
GROWN_TIMES: Final = 4
"""Of what it had when it was written anew."""


class Growth:
    """When a registry has grown so much that it is worth writing it anew.

    Args:
        bytes_min: see `GROWN_BYTES_MIN`.
    """

    def __init__(self, bytes_min: int = GROWN_BYTES_MIN) -> None:
        self._bytes_min = bytes_min
        self._due_bytes = bytes_min

    def is_due(self, path: Path) -> bool:
        """Whether it is time.

        Raises:
            OSError: it is not there.
        """
        return path.stat().st_size >= self._due_bytes

    def tried(self, path: Path) -> None:
        """It was written anew, or that has failed: either way not again for a while.

        Raises:
            OSError: it is not there.
        """
        self._due_bytes = max(self._bytes_min, GROWN_TIMES * path.stat().st_size)


def compact(path: Path) -> None:
    """Write the registry anew. Its one writer calls this between two appends.

    Raises:
        OSError: the disk did not take it; the registry is as it was.
        ValueError: a line of it cannot be read.
    """
    lines = live_lines(path.read_bytes())
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(lines))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def live_lines(text: bytes) -> list[bytes]:
    """The lines that still say something, in their order. Processes that are gone say nothing.

    Raises:
        ValueError: a line that is not the last one cannot be read.
    """
    live: dict[tuple[Any, ...], bytes] = {}
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            _take_up(live, json.loads(line), line + b"\n")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of the registry: {error}") from error
    return [line for key, line in live.items() if key[0] != "process" or _is_alive(*key[1:])]


def _take_up(live: dict[tuple[Any, ...], bytes], record: dict[str, Any], line: bytes) -> None:
    kind = record["kind"]
    for over in list(_ended_by(live, record)):
        del live[over]
    match kind:
        case "process":
            live[kind, record["pid"], record["started"], record["boot"]] = line
        case "command":
            live[kind, record["name"]] = line
        case "released":
            pass
        case "run" | "closed":
            live[(kind,)] = line
        case "folder" | "segments" | "listener":
            live[kind, line] = line
        case _:
            raise ValueError(f"unknown kind of record {kind!r}")


def _ended_by(
    live: dict[tuple[Any, ...], bytes], record: dict[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """What this record makes an end of."""
    match record["kind"]:
        case "run":
            yield from (key for key in live if key[0] in {"run", "process", "closed"})
        case "closed":
            yield from (key for key in live if key[0] not in {"run", "process"})
        case "command" | "released" if ("command", record["name"]) in live:
            yield "command", record["name"]


def _is_alive(pid: int, started: int, boot: str) -> bool:
    return Identity(pid, started, boot).alive
