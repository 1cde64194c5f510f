"""What a resumed run does with the records of steps that it will do again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from milepost.supervisor.cleanup.registry import PRIVATE
from milepost.supervisor.cleanup.unfinished import SUMMARY, write_open_step

EARLIER_SUMMARY: Final = f"{PRIVATE}/earlier_{SUMMARY}"
"""Of the life before this one."""
SUPERSEDED: Final = f"{PRIVATE}/superseded.jsonl"
"""Objects taken out of metrics.jsonl, kept for whoever asks what was there."""


def drop_superseded(run_folder: Path, resume_step: int) -> dict[str, Any] | None:
    """Take the objects of steps after the checkpoint out of metrics.jsonl.

    A line that cannot be read goes, too, be it damaged or half written.

    Args:
        run_folder: of the run.
        resume_step: steps trained at the checkpoint; 0 for a run that begins again, in which the
            first version is published and evaluated once more.

    Returns:
        The object of the checkpoint's own step, taken out as well: it is open again, since its
        version is published once more.
    """
    path = run_folder / "metrics.jsonl"
    if not path.exists():
        return None
    kept: list[bytes] = []
    dropped: list[bytes] = []
    reopened: dict[str, Any] | None = None
    for line in path.read_bytes().splitlines(keepends=True):
        fields = _object(line)
        if fields is None or type(fields.get("step")) is not int:
            dropped.append(line.rstrip(b"\n") + b"\n")
        elif not resume_step or fields["step"] > resume_step:
            dropped.append(line)
        elif fields["step"] == resume_step:
            reopened = fields
        else:
            kept.append(line)
    if dropped:
        with (run_folder / SUPERSEDED).open("ab") as file:
            file.writelines(dropped)
    if reopened is not None:
        write_open_step(run_folder, reopened)
    draft = path.with_suffix(".draft")
    draft.write_bytes(b"".join(kept))
    draft.replace(path)
    return reopened


def earlier_events(run_folder: Path) -> list[dict[str, Any]]:
    """Whole lines of events.jsonl that an earlier part of the run wrote."""
    path = run_folder / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [found for line in lines if (found := _object(line)) is not None]


def mend(path: Path) -> None:
    """Cut off what a machine that died left of a last line: the next one would be part of it."""
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _object(line: bytes) -> dict[str, Any] | None:
    """What a whole line says; None for one that says nothing any more."""
    try:
        found = orjson.loads(line) if line.endswith(b"\n") else None
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def earlier_statistics(run_folder: Path) -> dict[str, dict[str, Any]]:
    """What each actor counted at the end of the run's last life; nothing if that was killed."""
    path = run_folder / EARLIER_SUMMARY
    if not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = orjson.loads(path.read_bytes()).get("statistics", {})
    return found
