"""Checks that a run can go on in its folder as the run that it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.resolved import read_resolved
from milepost.configs.run import ModelConfig
from milepost.configs.topology import Topology
from milepost.supervisor.checkpoints import (
    META,
    checkpoint_folder,
    last_checkpoint,
    set_aside,
    whole_checkpoints,
)
from milepost.supervisor.checks.check import Finding, Note, Subject
from milepost.supervisor.checks.code import READY, problems
from milepost.supervisor.cleanup.registry import read_registry
from milepost.supervisor.cleanup.unfinished import SUMMARY
from milepost.supervisor.initial_model import INITIAL_MODEL, NOTE, Made, noted_made
from milepost.supervisor.outcome import RunStatus
from milepost.supervisor.probe import Target

UNCHANGEABLE: Final = (
    ("run", "seed"),
    ("data", "prompts"),
    ("data", "options"),
    ("data", "shuffle"),
    ("model", "family"),
    ("model", "dtype"),
    ("algorithm", "estimator"),
    ("algorithm", "prompts_per_step"),
    ("algorithm", "samples_per_prompt"),
    ("algorithm", "minibatches_per_step"),
)
"""What decides which prompt belongs to which step, and how many optimizer steps that is, by which
the schedule goes; with another value it is another run."""


class _Cause(msgspec.Struct, frozen=True):
    actor: str
    text: str


class _Score(msgspec.Struct, frozen=True):
    version: int


class _Scores(msgspec.Struct, frozen=True):
    after: _Score | None


class _Summary(msgspec.Struct, frozen=True):
    """What matters here of summary.json."""

    status: str
    cause: _Cause | None
    scores: _Scores


class _Meta(msgspec.Struct, frozen=True):
    """What matters here of meta.json."""

    step: int
    trained_group_ids: tuple[str, ...]
    tokenizer_hash: str | None = None
    """None in one that says nothing of how text was read."""


def resume_goes_on(subject: Subject) -> Iterator[Finding]:
    """A resumed run that skips prompts, trains some twice, or has nothing left to do."""
    folder = subject.run_folder
    if not subject.resuming or folder is None:
        return
    written = folder / "topology.toml"
    if not written.is_file():
        what = "nothing to resume: no topology.toml"
        yield Problem(what, str(folder), "give the folder of a run that was started")
        return
    if pid := _supervisor_of(folder):
        what = f"the run goes on: its supervisor is process {pid}"
        yield Problem(what, str(folder), f"wait for its end, or `milepost stop --run {folder}`")
    for aside in set_aside(folder):
        what = "was being replaced when the run was killed; to resume it gives it its name first"
        yield Note(what, str(aside))
    try:
        before = load_topology(str(written.absolute()))
    except ConfigError as error:
        yield from error.problems
        return
    yield from _differences(before, subject.topology)
    yield from _made_otherwise(folder, subject.topology.model)
    path = folder / SUMMARY
    try:
        summary = _read_summary(path)
    except (OSError, msgspec.MsgspecError) as error:
        what = f"how the run ended cannot be read: {error}"
        yield Problem(what, str(path), "remove it: the run then goes on as one that was killed")
        return
    yield from _something_to_do(folder, subject.topology, summary)


def _supervisor_of(folder: Path) -> int:
    """Number of the process that runs it now; 0 when nobody does."""
    try:
        owned = read_registry(folder)
    except (OSError, ValueError):
        return 0  # whoever takes the folder over says what is wrong with it
    return owned.supervisor.pid if owned.supervisor is not None and owned.in_use else 0


def _something_to_do(
    folder: Path, topology: Topology, summary: _Summary | None
) -> Iterator[Finding]:
    step, steps = last_checkpoint(folder), topology.run.steps
    if step is None:
        what = "no whole checkpoint yet, so the run begins again with its first step"
        yield Note(what, str(folder / "checkpoints"))
    elif problem := _damage(checkpoint_folder(folder, step) / META):
        yield Problem(problem, str(checkpoint_folder(folder, step)), _without_newest(folder))
    elif step > steps:
        what = f"steps = {steps}, but the run to resume has a checkpoint of step {step}"
        yield Problem(what, "$.run.steps", f"set more than {step} to train on")
    elif step == steps and (still_open := _still_open(summary, topology)):
        what = f"all {steps} steps are trained; goes on with what is open: {still_open}"
        yield Note(what, str(folder))
    elif step == steps:
        what = f"the run is complete: steps = {steps}, all of them are trained, and nothing is open"
        yield Problem(what, "$.run.steps", f"set more than {step} to train on")


def checkpoint_fits(subject: Subject) -> Iterator[Finding]:
    """A trainer that refuses to go on when all else has started; old weights, a new tokenizer.

    Torch alone can read what a checkpoint holds, so a child process does.
    """
    folder, model = subject.run_folder, subject.topology.model
    if not subject.resuming or folder is None or subject.topology.actors.trainer is None:
        return
    step = last_checkpoint(folder)
    if step is None or model is None or not model.path:
        return  # nothing to go on from, or a model that is still to be made
    newest = checkpoint_folder(folder, step)
    if _read_meta(newest / META).tokenizer_hash is None:
        what = "does not say with which tokenizer and chat template: whether they are the same"
        yield Note(f"{what} is not known", str(newest))
    options = {
        "model": str(model.folder),
        "family": model.family,
        "earlier": _without_newest(folder),
        "other_model": _other_model(folder, model),
    }
    target = Target("checkpoint", str(newest), str(newest), options)
    yield from problems((target,), subject.topology.system.timeouts.ready_s, READY)


def _other_model(folder: Path, model: ModelConfig) -> str:
    """What to do about a starting checkpoint that is not that of the run."""
    before = read_resolved(folder / "topology.toml").model
    started_from = before.path if before is not None else ""
    own = "start a run of its own from its hf folder"
    if started_from == model.path:
        return f"put back what was changed in {model.folder}, or {own}"
    return f'the run to resume started from "{started_from}": set that again, or {own}'


def _without_newest(folder: Path) -> str:
    """What to do about a newest checkpoint that is damaged."""
    earlier = whole_checkpoints(folder)[:-1]
    place = f"step {earlier[-1]}" if earlier else "its beginning"
    return f"remove its folder: the run then goes on from {place}"


def _still_open(summary: _Summary | None, topology: Topology) -> str:
    """What a run that has trained all its steps has not done yet; empty when it is complete."""
    if summary is None:
        return "it was killed before its end"
    if summary.status != RunStatus.DONE:
        cause = summary.cause
        said = f": {cause.actor}: {cause.text}" if cause else ""
        return f"it ended as {summary.status}{said}"
    evaluator, after = topology.actors.evaluator, summary.scores.after
    is_measured = after is not None and after.version == topology.run.steps
    if evaluator is not None and evaluator.at_end and not is_measured:
        return f"version {topology.run.steps}, the last one, has no score"
    return ""


def _damage(meta: Path) -> str:
    """Why a checkpoint cannot be gone on from, as far as that shows without torch."""
    try:
        _read_meta(meta)
    except (OSError, msgspec.MsgspecError) as error:
        return f"the newest checkpoint is damaged, its {META} cannot be read: {error}"
    return ""


def _read_meta(path: Path) -> _Meta:
    return msgspec.json.decode(path.read_bytes(), type=_Meta)


def _read_summary(path: Path) -> _Summary | None:
    """How the last life of the run ended; None when nobody wrote that down."""
    return msgspec.json.decode(path.read_bytes(), type=_Summary) if path.exists() else None


def _differences(before: Topology, now: Topology) -> Iterator[Finding]:
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for table, key in UNCHANGEABLE:
        was, wished = _value(old, table, key), _value(new, table, key)
        if was != wished:
            what = f"{key} was {was!r} in the run to resume, and is {wished!r} now"
            yield Problem(what, f"$.{table}.{key}", "set it back, or start a run of its own")


def _made_otherwise(folder: Path, model: ModelConfig | None) -> Iterator[Finding]:
    """The fresh checkpoint of a run is made once, so other words about it would have no effect."""
    if model is None or not model.create or not (folder / INITIAL_MODEL).is_dir():
        return
    try:
        made = noted_made(folder)
    except (OSError, msgspec.MsgspecError) as error:
        what = f"how {INITIAL_MODEL} was made cannot be read: {error}"
        yield Problem(what, str(folder / NOTE), "put it back, or remove it to go on unasked")
        return
    if made is None:
        what = "does not say how it was made: whether `model.create` is the same is not known"
        yield Note(what, str(folder / INITIAL_MODEL))
        return
    was, wished = msgspec.to_builtins(made), msgspec.to_builtins(Made.by(model))
    for key in was:
        if was[key] != wished[key]:
            what = f"{INITIAL_MODEL} was made with {key} = {was[key]!r}, and not {wished[key]!r}"
            yield Problem(what, f"$.model.{key}", "set it back, or start a run of its own")


def _value(document: dict[str, Any], table: str, key: str) -> object:
    return (document[table] or {}).get(key)
