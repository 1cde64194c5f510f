"""How a run ends: drain, stop stage by stage from the makers of work down, name the cause."""

from __future__ import annotations

from typing import Any, Final

from milepost.messages.agent import RunEnds
from milepost.messages.supervisor import NOT_FINITE, Drain, WorkFinished
from milepost.supervisor import causes
from milepost.supervisor.book import SUPERVISOR, Book, Phase
from milepost.supervisor.events import DrainChild, Finish, SignalChild, TellChild
from milepost.supervisor.outcome import Cause, RunStatus, Verdict
from milepost.supervisor.states import (
    Child,
    Doomed,
    Drained,
    Draining,
    Failed,
    Restarting,
    Running,
    Stopped,
    Stopping,
)

DRAIN_GRACE_S: Final = 1.0
"""After the drain deadline, for answers on their way."""


class Ending:
    """The part of the core that brings a run to its end. Nothing in it starts a process."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._status: RunStatus | None = None
        self._cause: Cause | None = None
        self._cause_s = 0.0
        self._drain_until_s = 0.0
        self._undone: Cause | None = None
        """First part of the work that could not be done, though the run went on to its end."""
        self.summaries: dict[str, dict[str, Any]] = {}
        self.last_step = 0

    def finished(self, actor: str, message: WorkFinished) -> None:
        """One significant actor has done what it could."""
        self.summaries[actor] = message.summary
        if message.problem and self._undone is None:
            self._undone = Cause(actor, message.problem)

    @property
    def cause(self) -> Cause | None:
        """First cause so far."""
        return self._cause

    def work_done(self, now_s: float) -> None:
        """Every significant actor has finished: stop the others."""
        if self._book.phase in {Phase.STARTING, Phase.RUNNING}:
            self._status = RunStatus.DONE
            text = "every significant actor has finished its work"
            self._book.record("finished", text)
            self._say_goodbye(text)
            self._begin_stop(now_s)

    def fail(self, cause: Cause, now_s: float, *, guard: str = "") -> None:
        """Something went wrong; the first such cause ends the run.

        While the run was running, actors that save a checkpoint still get the chance, unless
        one of them failed or what they would save is known to be bad.

        Args:
            cause: what, and who.
            now_s: monotonic time.
            guard: name of the one that tripped; empty when it was none.
        """
        if self._status not in {None, RunStatus.STOPPED}:
            self.died_late(cause, now_s)
            return
        cause = causes.named(cause)
        status = RunStatus.GUARD if guard else RunStatus.FAILED
        self._status, self._cause, self._cause_s = status, cause, now_s
        self._book.record(status, cause.text, source=cause.actor)
        self._say_goodbye(cause.text)
        if self._book.phase is Phase.RUNNING:
            culprit = self._book.children.get(cause.actor)
            # Who trips a guard is well, and has whole weights unless they are no numbers any more.
            broken = culprit is not None and culprit.plan.saves and not guard
            spoiled = broken or guard == NOT_FINITE
            savers = [child for child in self._book.in_state(Running) if child.plan.saves]
            self._drain([] if spoiled else savers, now_s)
        elif self._book.phase is Phase.STARTING:
            self._begin_stop(now_s)

    def died_late(self, cause: Cause, now_s: float) -> None:
        """A death while the run ends anyway: a consequence, unless it shows who was first."""
        old = self._cause if self._status is RunStatus.FAILED else None
        if old is not None and causes.better_cause(old, self._cause_s, cause, now_s):
            self._cause = causes.named(cause)
        elif old is not None and causes.tells_of_full_disk(cause):
            # Whoever died of it could not even write its last words into its log.
            self._cause = causes.with_full_disk(old)
        self._book.record("died_late", cause.text, source=cause.actor)

    def stop(self, reason: str, now_s: float, *, at_once: bool) -> None:
        """Somebody asks for the end: drain first, or (at once) kill everything now."""
        if self._book.phase is Phase.ENDED:
            return
        if self._status is None:
            self._status = RunStatus.STOPPED
            self._cause, self._cause_s = Cause(SUPERVISOR, reason), now_s
        self._book.record("stop_requested", reason, at_once=at_once)
        self._say_goodbye(reason)
        if at_once:
            self._kill_all(now_s)
        elif self._book.phase is Phase.RUNNING:
            self._drain(self._book.in_state(Running), now_s)
        elif self._book.phase is Phase.STARTING:
            self._begin_stop(now_s)

    def drained(self, child: Child, error: str, now_s: float) -> None:
        """One child answered `Drain`, or failed to."""
        if not isinstance(child.state, Draining):
            return
        child.state = Drained(now_s)
        if error:
            self._book.record("not_drained", f"{child.name} did not drain: {error}")
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """A child has drained or died: go on to the next stage when this one is over."""
        if self._book.phase is Phase.DRAINING and not self._book.in_state(Draining):
            self._begin_stop(now_s)
        elif self._book.phase is Phase.STOPPING:
            self._stop_stage(now_s)

    def tick(self, now_s: float) -> None:
        """Act on the deadlines of draining and stopping."""
        if self._book.phase is Phase.DRAINING and now_s >= self._drain_until_s:
            for child in self._book.in_state(Draining):
                self.drained(child, "no answer by its deadline", now_s)
        for child in self._book.in_state(Stopping):
            assert isinstance(child.state, Stopping)
            if now_s >= child.state.kill_s:
                reason = f"did not stop within {self._book.timeouts.stop_s:g} s of SIGTERM"
                self._book.record("killed", f"{child.name} {reason}", source=child.name)
                self._book.doom(child, reason, now_s)
        for child in self._book.in_state(Doomed):
            assert isinstance(child.state, Doomed)
            if now_s >= child.state.give_up_s:
                text = f"{child.name} (pid {child.pid}) is still there after SIGKILL"
                self._book.record("unkillable", text, source=child.name)
                child.state = Failed(now_s, text)
                self.fail(Cause(child.name, text), now_s)
                self.advance(now_s)

    def _say_goodbye(self, reason: str) -> None:
        """Agents from outside are no children: their door says to them how this ends."""
        assert self._status is not None, "goodbye before the end"
        for child in self._book.in_state(Running):
            if child.plan.kind == "guests":
                news = RunEnds(status=self._status.value, reason=reason)
                self._book.order(TellChild(child.name, news))

    def _drain(self, children: list[Child], now_s: float) -> None:
        deadline_s = self._book.timeouts.drain_s
        self._drain_until_s = now_s + deadline_s + DRAIN_GRACE_S
        self._book.enter(Phase.DRAINING, now_s)
        # Who waits to be started again is not, any more.
        gone = tuple(one.name for one in self._book.children.values() if not one.has_process)
        drain = Drain(deadline_s=deadline_s, save=True, gone=gone)
        for child in children:
            child.state = Draining(now_s)
            self._book.order(DrainChild(child.name, drain))
        self.advance(now_s)

    def _begin_stop(self, now_s: float) -> None:
        self._book.enter(Phase.STOPPING, now_s)
        for child in self._book.in_state(Restarting):
            child.state = Stopped(now_s)
        self._stop_stage(now_s)

    def _stop_stage(self, now_s: float) -> None:
        living = self._book.living()
        if not living:
            self._finish(now_s)
            return
        stage = max(child.plan.order for child in living)
        for child in living:
            if child.plan.order == stage and not isinstance(child.state, Stopping | Doomed):
                child.state = Stopping(now_s, now_s + self._book.timeouts.stop_s)
                self._book.order(SignalChild(child.name, "TERM"))

    def _kill_all(self, now_s: float) -> None:
        if self._book.phase is not Phase.STOPPING:
            self._book.enter(Phase.STOPPING, now_s)
        for child in self._book.in_state(Restarting):
            child.state = Stopped(now_s)
        for child in self._book.living():
            if not isinstance(child.state, Doomed):
                self._book.doom(child, "stopped at once", now_s)
        self._stop_stage(now_s)

    def _finish(self, now_s: float) -> None:
        self._book.enter(Phase.ENDED, now_s)
        status, cause = self._status, self._cause
        if status is RunStatus.STOPPED and self._book.work_is_done():
            status = RunStatus.DONE
        if status is RunStatus.DONE:
            status = RunStatus.FAILED if self._undone else RunStatus.DONE
            cause = self._undone
        assert status is not None, "a run ends for a reason"
        spent = self._book.phase_seconds.items()
        seconds = {str(phase): round(spent_s, 3) for phase, spent_s in spent}
        self._book.order(Finish(Verdict(status, cause, seconds, self.summaries, self.last_step)))
