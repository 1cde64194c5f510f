"""What a killed supervisor had not written yet: the last object of metrics.jsonl, the summary."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final

from milepost.supervisor.cleanup.registry import PRIVATE

METRICS: Final = "metrics.jsonl"
EVENTS: Final = "events.jsonl"
SUMMARY: Final = "summary.json"
OPEN_STEP: Final = f"{PRIVATE}/open_step.json"
"""The object of the step that still grows, as far as it has grown."""
RUN_FILE: Final = f"{PRIVATE}/run.json"
"""What the supervisor said of its run when it began; also how clients attach."""
BEGUN: Final = "begun"
"""Kind of the event with which the work of each life of a run begins."""
EVALUATION: Final = "evaluation"
"""Kind of the event in which the evaluator reports the scores of one version."""
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "step": (int,),
    "version": (int,),
    "time": (int, float),
    "kind": (str,),
    "source": (str,),
    "run_id": (str,),
    "name": (str,),
    "folder": (str,),
    "pid": (int,),
    "steps": (int,),
    "resumed_from": (int, NoneType),
    "started_at": (int, float),
}
"""What a field that is counted with or compared may be."""
_NUMBER_END: Final = 1 << 53
"""Of every number here; one beyond it, or no number at all, is damaged."""


def write_open_step(run_folder: Path, fields: dict[str, Any]) -> None:
    """Keep the object that still grows; a reader sees the old or the new one, never half.

    Raises:
        OSError: the disk did not take it.
    """
    path = run_folder / OPEN_STEP
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(fields), encoding="utf-8")
    draft.replace(path)


def finish_metrics(run_folder: Path) -> None:
    """Write the object that still grew as the last line; does nothing the second time.

    Raises:
        OSError: the disk did not take it.
    """
    open_step, path = run_folder / OPEN_STEP, run_folder / METRICS
    if not open_step.exists():
        return
    whole = path.read_bytes() if path.exists() else b""
    whole = whole[: whole.rfind(b"\n") + 1]
    written = [line["step"] for line in _objects(whole, "step")]
    for fields in _objects(open_step.read_bytes(), "step"):
        if written and fields["step"] <= written[-1]:
            continue
        with path.open("ab") as file:
            # A line that was being written is in the open object still.
            file.truncate(len(whole))
            file.write(json.dumps(fields).encode() + b"\n")
    open_step.unlink()


def finish(run_folder: Path, run_id: str) -> None:
    """Write metrics and summary to their end, in the name of a supervisor that was killed.

    Args:
        run_folder: of the run.
        run_id: of the life that ended; a summary of that life is left as it is.

    Raises:
        OSError: the disk did not take it.
    """
    path = run_folder / SUMMARY
    names = (METRICS, EVENTS, OPEN_STEP)
    places = [place for name in names if (place := run_folder / name).exists()]
    # The last sign of life; whoever cleans up may come much later.
    ended_at = max((place.stat().st_mtime for place in places), default=time.time())
    finish_metrics(run_folder)
    if any(each["run_id"] == run_id for each in _objects(_one_line(path), "run_id")):
        return
    about = _about(run_folder, run_id)
    started_at = float(about.pop("started_at", ended_at))
    steps = [line["step"] for line in _lines(run_folder / METRICS, "step")]
    events = list(_lines(run_folder / EVENTS, "time", "kind", "source"))
    life = [event for event in events if event["time"] >= started_at]
    begun = next((e["time"] for e in life if e["kind"] == BEGUN), ended_at)
    restarts = [event["source"] for event in life if event["kind"] == "restarted"]
    summary = {
        "status": "killed",
        "exit_code": None,
        "cause": {"actor": "supervisor", "text": "the supervisor was killed", "log_tail": []},
        "run_id": run_id,
        **about,
        "steps_done": steps[-1] if steps else 0,
        "scores": before_and_after(evaluations(events)),
        "seconds": {
            "starting": round(begun - started_at, 3),
            "running": round(ended_at - begun, 3),
            "total": round(ended_at - started_at, 3),
        },
        "restarts": {name: restarts.count(name) for name in sorted(set(restarts))},
        "started_at": started_at,
        "ended_at": ended_at,
    }
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _about(run_folder: Path, run_id: str) -> dict[str, Any]:
    kept = ("name", "folder", "pid", "steps", "resumed_from", "started_at")
    for facts in _objects(_one_line(run_folder / RUN_FILE), "run_id", *kept):
        if facts["run_id"] == run_id:
            return {name: facts[name] for name in kept}
    return {}


def version_evaluated(event: dict[str, Any]) -> int | None:
    """The version whose scores this event tells; None when it tells none."""
    values: Any = event.get("values")
    if event.get("kind") != EVALUATION or not _has(values, "version"):
        return None
    version: int = values["version"]
    return version


def evaluations(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What evaluators reported; a resume has taken out what is void."""
    return [dict(each["values"]) for each in events if version_evaluated(each) is not None]


def before_and_after(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """`before` (of version 0) and `after` training, each None without one; `all`.

    What an evaluator says again, since it may not have been heard, counts once: the last word.
    """
    known = {each["version"]: each for each in evaluations}
    trained = [version for version in known if version > 0]
    return {
        "before": known.get(0),
        "after": known[max(trained)] if trained else None,
        "all": list(known.values()),
    }


def _lines(path: Path, *needed: str) -> Iterator[dict[str, Any]]:
    if path.exists():
        data = path.read_bytes()
        yield from _objects(data[: data.rfind(b"\n") + 1], *needed)


def _one_line(path: Path) -> bytes:
    """A file that is one object, over many lines; nothing when it is missing."""
    return path.read_bytes().replace(b"\n", b" ") if path.exists() else b""


def _objects(data: bytes, *needed: str) -> Iterator[dict[str, Any]]:
    """Objects with these fields, each of its type, one a line.

    A damaged one is passed over: whoever cleans up behind this has processes to end and memory to
    free, and `milepost view` names the line.
    """
    for line in data.split(b"\n"):
        # Also what is nested too deep to be read.
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if _has(found, *needed):
                yield found


def _has(found: Any, *needed: str) -> bool:
    """Whether it is an object with these fields, and they can be counted with."""
    return isinstance(found, dict) and all(
        name in found and _is_sound(found[name], _TYPES[name]) for name in needed
    )


def _is_sound(value: Any, types: tuple[type, ...]) -> bool:
    # By its exact type: a bool is no number.
    is_number = type(value) in (int, float)
    return type(value) in types and (not is_number or abs(value) < _NUMBER_END)
