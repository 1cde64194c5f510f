"""The run as one message: what `ps`, `queues`, `why` and every display read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from milepost.messages.supervisor import EventReported, Snapshot, StepRecorded
from milepost.supervisor.book import Book
from milepost.supervisor.recording.steps import steps_done
from milepost.supervisor.states import Child, Doomed, Failed, Greeted, New, Restarting
from milepost.supervisor.watch import waiting_words

EVENTS_KEPT: Final = 50


@dataclass(slots=True)
class Recent:
    """The last metrics and events, for whoever comes late.

    Attributes:
        metrics: latest value of every metric.
        events: the last `EVENTS_KEPT`, oldest first.
        step: most batches trained that were told of.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    step: int = 0

    def note(self, message: EventReported | StepRecorded, wall_s: float) -> None:
        """Remember one record."""
        if isinstance(message, StepRecorded):
            self.metrics.update(message.metrics)
            self.step = max(self.step, steps_done(message.step, message.metrics))
            return
        self.events.append(
            {
                "time": round(wall_s, 3),
                "source": message.source,
                "kind": message.kind,
                "text": message.text,
                "values": message.values,
            }
        )


def build_snapshot(book: Book, recent: Recent, about: dict[str, Any], now_s: float) -> Snapshot:
    """The snapshot of this moment.

    Args:
        book: the core's state.
        recent: last metrics and events.
        about: facts of the run and its supervisor (name, id, folder, steps, resumed_from,
            statistics).
        now_s: monotonic time of the book.
    """
    run = {
        **about,
        "phase": str(book.phase),
        "phase_s": round(now_s - book.phase_since_s, 1),
        "elapsed_s": round(now_s - book.started_s, 1),
        # A resumed run has trained those of its checkpoint before anybody tells of one.
        "step": max(recent.step, about.get("resumed_from") or 0),
        "waiting": waiting_words(book, now_s),
    }
    actors = [_actor(child, now_s) for child in book.children.values()]
    return Snapshot(run=run, actors=actors, last_metrics=recent.metrics, events=list(recent.events))


def _actor(child: Child, now_s: float) -> dict[str, Any]:
    beat = child.heartbeat
    heard = child.heard_s > 0
    return {
        "actor": child.name,
        "kind": child.plan.kind,
        "state": child.state_name,
        "state_s": round(now_s - child.state.since_s, 1),
        "pid": child.pid,
        "incarnation": child.incarnation,
        "restarts": child.num_restarts,
        "heard_s": round(now_s - child.heard_s, 1) if heard else None,
        "progress": beat.progress if beat else 0,
        "progress_s": round(now_s - child.progress_s, 1) if beat else None,
        "working_on": beat.working_on if beat else _waiting(child, now_s),
        "finished": child.finished,
        "facts": child.facts,
        "ports": list(child.ports),
        "statistics": beat.statistics if beat else {},
    }


def _waiting(child: Child, now_s: float) -> str:
    match child.state:
        case New(since_s, deadline_s):
            return f"starts; HELLO is due in {deadline_s - now_s:.0f} s ({now_s - since_s:.1f} s)"
        case Greeted(since_s, deadline_s):
            return f"loads; READY is due in {deadline_s - now_s:.0f} s ({now_s - since_s:.1f} s)"
        case Restarting(at_s=at_s, reason=reason):
            return f"starts again in {max(0.0, at_s - now_s):.1f} s, since it {reason}"
        case Doomed(reason=reason) | Failed(reason=reason):
            return reason
        case _:
            return ""
