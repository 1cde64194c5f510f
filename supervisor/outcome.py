"""How a run ended, and who was the first cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1


class RunStatus(StrEnum):
    """The one word of `summary.json`."""

    DONE = "done"
    """Every significant actor finished its work."""
    STOPPED = "stopped"
    """Somebody asked for the end before the work was done."""
    GUARD = "guard"
    """A guard found that training goes wrong in a way that will not heal."""
    FAILED = "failed"
    KILLED = "killed"
    """The supervisor itself was killed; written by whoever cleaned up after it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What ended a run before its work was done.

    Attributes:
        actor: who was first, not who noticed.
        text: one line in words.
        exit_code: of its process; None when a signal ended it or it still ran.
        signal: name of the signal that ended it, or empty.
        log_tail: last lines of its log.
    """

    actor: str
    text: str
    exit_code: int | None = None
    signal: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The core's judgement, once every child has ended.

    Attributes:
        status: how it ended.
        cause: None exactly when the status is `done`.
        phase_seconds: wall time of each phase of the run.
        summaries: what significant actors reported with `WorkFinished`.
        last_step: steps trained, as far as they were recorded.
    """

    status: RunStatus
    cause: Cause | None
    phase_seconds: dict[str, float] = field(default_factory=dict)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    last_step: int = 0

    @property
    def exit_code(self) -> int:
        """0 only when the work was done."""
        return EXIT_DONE if self.status is RunStatus.DONE else EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `supervise` returns; the same facts as `summary.json`."""

    verdict: Verdict
    summary: dict[str, Any]

    @property
    def status(self) -> RunStatus:
        """How the run ended."""
        return self.verdict.status

    @property
    def cause(self) -> Cause | None:
        """First cause of an early end."""
        return self.verdict.cause

    @property
    def exit_code(self) -> int:
        """0 only when the work was done."""
        return self.verdict.exit_code
