"""What a resumed run does with the records of steps that it will do again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from milepost.supervisor.cleanup.registry import PRIVATE
from milepost.supervisor.cleanup.unfinished import SUMMARY, version_evaluated, write_open_step

EARLIER_SUMMARY: Final = f"{PRIVATE}/earlier_{SUMMARY}"
"""Of the life before this one."""
SUPERSEDED: Final = f"{PRIVATE}/superseded.jsonl"
"""Lines taken out of the files of the run, kept for whoever asks what was there."""


def drop_superseded(run_folder: Path, resume_step: int) -> dict[str, Any] | None:
    """Take what was said of steps after the checkpoint out of the files that tell of the run.

    These are metrics, evaluations and transcripts: a later version of the same number will have
    other weights. A line of metrics that cannot be read goes, too, be it damaged or half written.

    Args:
        run_folder: of the run.
        resume_step: steps trained at the checkpoint; 0 for a run that begins again, in which the
            first version is published and evaluated once more.

    Returns:
        The object of the checkpoint's own step, taken out as well: it is open again, since its
        version is published once more.
    """
    reopened = _reopen(run_folder, resume_step)
    # None is of these weights when the run begins again.
    version_max = resume_step or -1
    for name, version_of in (("events.jsonl", version_evaluated), ("transcripts.jsonl", _version)):
        path, kept, dropped = run_folder / name, list[bytes](), list[bytes]()
        _mend(path)
        for line in _lines(path):
            fields = _object(line)
            version = None if fields is None else version_of(fields)
            void = version is not None and version > version_max
            (dropped if void else kept).append(line)
        if dropped:
            _replace(path, kept, dropped)
    return reopened


def _reopen(run_folder: Path, resume_step: int) -> dict[str, Any] | None:
    path = run_folder / "metrics.jsonl"
    if not path.exists():
        return None
    kept: list[bytes] = []
    dropped: list[bytes] = []
    reopened: dict[str, Any] | None = None
    for line in _lines(path):
        fields = _object(line)
        if fields is None or type(fields.get("step")) is not int:
            dropped.append(line.rstrip(b"\n") + b"\n")
        elif not resume_step or fields["step"] > resume_step:
            dropped.append(line)
        elif fields["step"] == resume_step:
            reopened = fields
        else:
            kept.append(line)
    if reopened is not None:
        write_open_step(run_folder, reopened)
    _replace(path, kept, dropped)
    return reopened


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _replace(path: Path, kept: list[bytes], dropped: list[bytes]) -> None:
    """By a new file, so that whoever follows it reads it anew."""
    if dropped:
        with (path.parent / SUPERSEDED).open("ab") as file:
            file.writelines(dropped)
    draft = path.with_suffix(".draft")
    draft.write_bytes(b"".join(kept))
    draft.replace(path)


def _version(fields: dict[str, Any]) -> int | None:
    version = fields.get("version")
    return version if type(version) is int else None


def earlier_events(run_folder: Path) -> list[dict[str, Any]]:
    """Whole lines of events.jsonl that an earlier part of the run wrote."""
    lines = _lines(run_folder / "events.jsonl")
    return [found for line in lines if (found := _object(line)) is not None]


def _mend(path: Path) -> None:
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
