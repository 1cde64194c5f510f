"""What a resumed run does with the records of steps that it will do again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from milepost.supervisor.cleanup.registry import PRIVATE

SUPERSEDED: Final = f"{PRIVATE}/superseded.jsonl"
"""Lines taken out of metrics.jsonl, kept for whoever asks what was there."""
VERSION: Final = "train/version"
"""Trainer's metric: number of steps trained when the line was written."""


def steps_done(step: int, metrics: dict[str, Any]) -> int:
    """Steps that had been trained when this line was recorded.

    The trainer counts the step it did, from 0; everybody else names the version they speak of,
    which is a number of steps.
    """
    return int(metrics.get(VERSION) or step)


def drop_superseded(run_folder: Path, resume_step: int) -> int:
    """Take the lines of steps after the checkpoint out of metrics.jsonl; returns how many.

    A line that a killed run left half written goes, too.

    Args:
        run_folder: of the run.
        resume_step: steps trained at the checkpoint; 0 for a run that begins again, in which the
            first version is published and evaluated once more.
    """
    path = run_folder / "metrics.jsonl"
    if not path.exists():
        return 0
    kept: list[bytes] = []
    dropped: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            dropped.append(line + b"\n")
            continue
        fields = orjson.loads(line)
        late = not resume_step or steps_done(int(fields["step"]), fields) > resume_step
        (dropped if late else kept).append(line)
    if dropped:
        with (run_folder / SUPERSEDED).open("ab") as file:
            file.writelines(dropped)
        draft = path.with_suffix(".draft")
        draft.write_bytes(b"".join(kept))
        draft.replace(path)
    return len(dropped)


def earlier_events(run_folder: Path) -> list[dict[str, Any]]:
    """Whole lines of events.jsonl that an earlier part of the run wrote."""
    path = run_folder / "events.jsonl"
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [orjson.loads(line) for line in lines if line.endswith(b"\n")]
