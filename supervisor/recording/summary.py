"""RUN/summary.json: how the run ended, in one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from milepost.messages.supervisor import EventReported
from milepost.supervisor.cleanup.unfinished import EVALUATION, before_and_after, evaluations
from milepost.supervisor.outcome import Cause, Verdict


class Scores:
    """Collects evaluations; that of version 0 is `before`, the last later one `after`."""

    def __init__(self) -> None:
        self._all: list[dict[str, Any]] = []

    def load(self, events: Iterable[dict[str, Any]]) -> None:
        """Take over the evaluations of an earlier part of the run, up to its checkpoint."""
        self._all += evaluations(events)

    def note(self, event: EventReported) -> None:
        """Look at one event."""
        if event.kind == EVALUATION:
            self._all.append(dict(event.values))

    def summary(self) -> dict[str, Any]:
        """`before` (of version 0) and `after` training, each None without one; `all`."""
        return before_and_after(self._all)


def summarize(
    verdict: Verdict,
    scores: Scores,
    *,
    about: dict[str, Any],
    restarts: dict[str, int],
    statistics: dict[str, dict[str, Any]],
    started_at: float,
    ended_at: float,
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        verdict: the core's judgement.
        scores: evaluations seen.
        about: name, id and planned steps of the run.
        restarts: actor -> number of restarts, only those above zero.
        statistics: actor -> what it counted, as of its last heartbeat.
        started_at: seconds since 1970.
        ended_at: seconds since 1970.
    """
    return {
        "status": str(verdict.status),
        "exit_code": verdict.exit_code,
        "cause": _cause(verdict.cause),
        **about,
        "steps_done": verdict.last_step,
        "scores": scores.summary(),
        "seconds": {
            **verdict.phase_seconds,
            "total": round(ended_at - started_at, 3),
        },
        "restarts": restarts,
        "actors": verdict.summaries,
        "statistics": statistics,
        "started_at": started_at,
        "ended_at": ended_at,
    }


def _cause(cause: Cause | None) -> dict[str, Any] | None:
    if cause is None:
        return None
    return {
        "actor": cause.actor,
        "text": cause.text,
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "log_tail": list(cause.log_tail),
    }
