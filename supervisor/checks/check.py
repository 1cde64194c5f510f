"""What a check is: a sentence, a function that finds problems, and the failure it prevents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from milepost.configs.problem import Problem
from milepost.configs.topology import Topology
from milepost.supervisor.checks.machine import Machine


class Stage(IntEnum):
    """Checks of one cost. A stage with problems stops the next one."""

    READING = 1
    """The topology alone: no file, no process, no import."""
    FILES = 2
    """What it names on this machine's disk, and what this machine has."""
    CODE = 3
    """What others wrote and we do not load here, in a process of its own: the user's code, and
    checkpoints of torch."""


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing is wrong, but a person should know."""

    text: str
    where: str

    def __str__(self) -> str:
        """All of it in one line."""
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        topology: the resolved topology.
        machine: what this machine has; looked at once, so that checks stay plain functions.
        run_folder: where the run will write; None when it is not known yet (`milepost check`).
        resuming: the folder is meant to hold an earlier run.
    """

    topology: Topology
    machine: Machine
    run_folder: Path | None = None
    resuming: bool = False


Finding: TypeAlias = Problem | Note


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `milepost check`."""

    sentence: str
    """What is true when nothing is found."""
    stage: Stage
    find: Callable[[Subject], Iterable[Finding]]
    """Never raises, prints, repairs or changes anything."""

    @property
    def prevents(self) -> str:
        """The later failure that this check prevents, from its function's docstring."""
        return " ".join((inspect.getdoc(self.find) or "").split())


@dataclass(frozen=True, slots=True)
class Checked:
    """What one check found."""

    check: Check
    findings: tuple[Finding, ...] = ()
    skipped: bool = False
    """An earlier stage has problems, so this one was not tried."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Without the notes."""
        return tuple(each for each in self.findings if isinstance(each, Problem))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Without the problems."""
        return tuple(each for each in self.findings if isinstance(each, Note))


def run_checks(checks: Sequence[Check], subject: Subject) -> Iterator[Checked]:
    """Try each check in order; all checks of a stage are tried, whatever the first ones find."""
    failed_stage: Stage | None = None
    for check in checks:
        if failed_stage is not None and check.stage > failed_stage:
            yield Checked(check, skipped=True)
            continue
        checked = Checked(check, tuple(check.find(subject)))
        if checked.problems:
            failed_stage = check.stage
        yield checked
