"""The supervisor's deadlines: who is late, who is silent, and when to look again."""

from __future__ import annotations

from typing import Final

from milepost.supervisor.book import Book, Phase
from milepost.supervisor.states import (
    Child,
    Doomed,
    Greeted,
    New,
    Ready,
    Restarting,
    Running,
    Stopping,
)

GAP_S: Final = 3.0
"""Children beat once a second. When nothing at all was heard for longer, it was the supervisor
that stood still (suspended, Ctrl-Z), and nobody is blamed for that time."""
REPORT_S: Final = 5.0
"""How often a start that takes long says who is missing."""


class Watch:
    """Compares the book with the time."""

    def __init__(self, book: Book, now_s: float) -> None:
        self._book = book
        self._last_s = now_s
        self._report_s = now_s + REPORT_S
        self._stall_reported = False

    def passed(self, now_s: float) -> None:
        """Time went on to `now_s`. A gap in the supervisor's own life moves every deadline."""
        gap_s = now_s - self._last_s
        self._last_s = now_s
        if gap_s <= GAP_S:
            return
        for child in self._book.children.values():
            child.heard_s += gap_s
            child.progress_s += gap_s
            match child.state:
                case New(since_s, deadline_s):
                    child.state = New(since_s, deadline_s + gap_s)
                case Greeted(since_s, deadline_s):
                    child.state = Greeted(since_s, deadline_s + gap_s)
                case _:
                    pass

    def overdue(self, now_s: float) -> list[tuple[Child, str]]:
        """Children that missed a deadline, with the deadline in words."""
        timeouts = self._book.timeouts
        late: list[tuple[Child, str]] = []
        for child in self._book.children.values():
            match child.state:
                case New(_, deadline_s) if now_s >= deadline_s:
                    late.append((child, f"no HELLO within {timeouts.hello_s:g} s of its start"))
                case Greeted(_, deadline_s) if now_s >= deadline_s:
                    late.append((child, f"not READY within {timeouts.ready_s:g} s of HELLO"))
                case Running() if now_s - child.heard_s >= timeouts.heartbeat_s:
                    late.append((child, self._silence(child, now_s)))
                case _:
                    pass
        return late

    def report(self, now_s: float) -> None:
        """Say who is missing at the start, and when nobody gets anything done."""
        if self._book.phase is Phase.STARTING and now_s >= self._report_s:
            self._report_s = now_s + REPORT_S
            self._book.record("waiting", waiting_words(self._book, now_s))
        if self._book.phase is Phase.RUNNING:
            self._report_stall(now_s)

    def next_s(self, now_s: float) -> float:
        """When to look again; at most a second away."""
        times = [now_s + 1.0]
        for child in self._book.children.values():
            match child.state:
                case New(_, at_s) | Greeted(_, at_s) | Stopping(_, at_s):
                    times.append(at_s)
                case Restarting(at_s=at_s) | Doomed(give_up_s=at_s):
                    times.append(at_s)
                case Running():
                    times.append(child.heard_s + self._book.timeouts.heartbeat_s)
                case _:
                    pass
        return max(now_s, min(times))

    def _silence(self, child: Child, now_s: float) -> str:
        deadline_s = self._book.timeouts.heartbeat_s
        last = child.heartbeat.working_on if child.heartbeat else "nothing"
        return (
            f"silent for {now_s - child.heard_s:.1f} s (deadline {deadline_s:g} s),"
            f" the last it worked on: {last}"
        )

    def _report_stall(self, now_s: float) -> None:
        running = self._book.in_state(Running)
        limit_s = self._book.timeouts.heartbeat_s
        stalled = bool(running) and all(now_s - child.progress_s >= limit_s for child in running)
        if stalled and not self._stall_reported:
            waits = {
                child.name: child.heartbeat.working_on if child.heartbeat else ""
                for child in running
            }
            text = f"no actor has got anything done for {limit_s:g} s"
            self._book.record("stalled", text, working_on=waits)
        self._stall_reported = stalled


def waiting_words(book: Book, now_s: float) -> str:
    """Who has not become ready yet, since when and until when; empty when nobody is missing."""
    missing = []
    for child in book.children.values():
        match child.state:
            case New(since_s, deadline_s):
                missing.append(_wait(child.name, "HELLO", since_s, deadline_s, now_s))
            case Greeted(since_s, deadline_s):
                missing.append(_wait(child.name, "READY", since_s, deadline_s, now_s))
            case _:
                pass
    if not missing:
        return ""
    return f"waiting for {len(missing)} of {len(book.children)}: " + ", ".join(missing)


def all_ready(book: Book) -> bool:
    """Whether nobody is missing any more."""
    return len(book.in_state(Ready, Running)) == len(book.children)


def _wait(name: str, what: str, since_s: float, deadline_s: float, now_s: float) -> str:
    return f"{name} ({what}, {now_s - since_s:.1f} s of {deadline_s - since_s:g} s)"
