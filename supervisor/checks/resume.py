"""Checks that a run can go on in its folder as the run that it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.topology import Topology
from milepost.supervisor.checkpoints import last_checkpoint
from milepost.supervisor.checks.check import Finding, Note, Subject

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
)
"""What decides which prompt belongs to which step; with another value it is another run."""


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
    try:
        before = load_topology(str(written.absolute()))
    except ConfigError as error:
        yield from error.problems
        return
    yield from _differences(before, subject.topology)
    step = last_checkpoint(folder)
    if step is None:
        what = "no whole checkpoint yet, so the run begins again with its first step"
        yield Note(what, str(folder / "checkpoints"))
    elif step >= subject.topology.run.steps:
        what = f"steps = {subject.topology.run.steps}, and all of them are trained"
        yield Problem(what, "$.run.steps", f"set more than {step} to train on")


def _differences(before: Topology, now: Topology) -> Iterator[Finding]:
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for table, key in UNCHANGEABLE:
        was, wished = _value(old, table, key), _value(new, table, key)
        if was != wished:
            what = f"{key} was {was!r} in the run to resume, and is {wished!r} now"
            yield Problem(what, f"$.{table}.{key}", "set it back, or start a run of its own")


def _value(document: dict[str, Any], table: str, key: str) -> object:
    return (document[table] or {}).get(key)
