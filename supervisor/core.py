"""The supervisor's decisions: events in, effects out; no clock, socket or process.

Owns: the state of every child and the phase of the run.
Invariants:
    SV-1 (one-life): at most one incarnation of a child has a process at any time.
    SV-2 (begin-together): no child begins before every child of the run was ready once.
    SV-3 (first-cause): the cause of an early end is set once; later deaths do not replace it,
        unless they show that its holder was a victim (`causes.better_cause`).
    SV-4 (it-ends): once stopping, every stage is gone within two stop deadlines, or its
        processes are named as ones that even SIGKILL did not end.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import structs

from milepost.configs.system import TimeoutsConfig
from milepost.messages.buffer import TokensAccounted
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    Begin,
    EventReported,
    GuardTripped,
    Heartbeat,
    Hello,
    PeerRestarted,
    PortOpened,
    Refused,
    ResourceReleased,
    ResourceTaken,
    StepRecorded,
    StopRun,
    Welcome,
    WorkFinished,
)
from milepost.messages.supervisor import Ready as SaidReady
from milepost.supervisor.agreement import disagreement
from milepost.supervisor.book import SUPERVISOR, Book, Phase
from milepost.supervisor.causes import cause_of, earlier_silence
from milepost.supervisor.ending import Ending
from milepost.supervisor.events import (
    Answer,
    Broken,
    ChildExited,
    ChildNotStarted,
    ChildStarted,
    DrainEnded,
    Effect,
    Event,
    Interrupted,
    Keep,
    NotTaken,
    Record,
    Said,
    StartChild,
    StopRequested,
    TellChild,
    Tick,
)
from milepost.supervisor.losses import Losses
from milepost.supervisor.outcome import Cause
from milepost.supervisor.plan import ChildPlan
from milepost.supervisor.recording.rates import SystemFigures
from milepost.supervisor.recording.steps import VERSION, steps_done
from milepost.supervisor.restart import Again, GiveUp, LetRest, decide
from milepost.supervisor.states import (
    Child,
    Doomed,
    Drained,
    Draining,
    Failed,
    Greeted,
    New,
    Ready,
    Restarting,
    Running,
    Stopped,
    Stopping,
)
from milepost.supervisor.watch import Watch, all_ready


class SupervisorCore:
    """Decides when children start, begin, restart, drain and stop, and how the run ended.

    Args:
        plans: the children, in the order of their start.
        timeouts: the run's deadlines.
        schema: fingerprint of our message types; a child with another is refused.
        now_s: monotonic time.
    """

    def __init__(
        self, plans: tuple[ChildPlan, ...], timeouts: TimeoutsConfig, schema: str, now_s: float
    ) -> None:
        assert plans, "a run without children"
        children = {plan.name: Child(plan, New(now_s, now_s + timeouts.hello_s)) for plan in plans}
        assert len(children) == len(plans), "two children with one name"
        self.book = Book(children, timeouts, started_s=now_s, phase_since_s=now_s)
        self.ending = Ending(self.book)
        self._watch = Watch(self.book, now_s)
        self.losses = Losses(self.book)
        self._figures = SystemFigures()
        self._schema = schema
        self._num_interrupts = 0
        """The phase cannot tell a second one: a run drains and stops for other reasons, too."""

    def start(self, now_s: float) -> list[Effect]:
        """Order every process at once; whoever is slowest to load is ordered first."""
        for child in self.book.children.values():
            self._start(child, now_s)
        return self.book.take_effects()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door into the state. `now_s` is a monotonic time in seconds."""
        self._watch.passed(now_s)
        match event:
            case ChildStarted():
                self.book.children[event.actor].pid = event.pid
            case ChildNotStarted(actor, incarnation, reason):
                exited = ChildExited(actor, incarnation, None, "", (reason,))
                self._died(self.book.children[actor], exited, now_s)
            case ChildExited():
                self._exited(event, now_s)
            case Said():
                self._said(event, now_s)
            case NotTaken():
                self._not_taken(event, now_s)
            case DrainEnded(actor, error):
                self.ending.drained(self.book.children[actor], error, now_s)
            case StopRequested(reason, at_once):
                self.ending.stop(reason, now_s, at_once=at_once)
            case Interrupted(name):
                self._num_interrupts += 1
                self.ending.stop(name, now_s, at_once=self._num_interrupts > 1)
            case Broken(reason):
                self.ending.fail(Cause(SUPERVISOR, reason), now_s)
            case Tick():
                self._tick(now_s)
            case _ as unreachable:
                assert_never(unreachable)
        return self.book.take_effects()

    def next_wake_s(self, now_s: float) -> float:
        """When a `Tick` is due, at most a second from now."""
        return self._watch.next_s(now_s)

    def validate(self) -> None:
        """Assert the invariants that one moment can show."""
        book = self.book
        running = book.in_state(Running, Draining, Drained)
        assert book.phase is not Phase.STARTING or not running, "SV-2 (begin-together)"
        assert book.phase is not Phase.ENDED or not book.living(), "SV-4 (it-ends)"
        assert book.phase is not Phase.RUNNING or self.ending.cause is None, "SV-3 (first-cause)"
        for child in book.children.values():
            assert child.num_restarts == child.incarnation, f"SV-1 (one-life): {child.name}"

    # ---- processes -----------------------------------------------------------------------

    def _start(self, child: Child, now_s: float) -> None:
        child.state = New(now_s, now_s + self.book.timeouts.hello_s)
        child.pid, child.heartbeat, child.last_words, child.ports = 0, None, "", ()
        self.book.order(StartChild(child.name, child.incarnation))

    def _exited(self, exited: ChildExited, now_s: float) -> None:
        child = self.book.children[exited.actor]
        if exited.incarnation != child.incarnation or not child.has_process:
            return
        asked = isinstance(child.state, Stopping) or (
            isinstance(child.state, Drained) and exited.code == 0
        )
        if asked or (child.finished and exited.code == 0):
            child.state = Stopped(now_s)
            self.ending.advance(now_s)
        else:
            self._died(child, exited, now_s)

    def _died(self, child: Child, exited: ChildExited, now_s: float) -> None:
        """A death nobody asked for, or one that we caused because the child was lost."""
        book = self.book
        doomed = child.state.reason if isinstance(child.state, Doomed) else ""
        cause = cause_of(child, exited, doomed)
        if book.phase is Phase.RUNNING:
            self._died_at_work(child, exited, cause, now_s)
        else:
            child.state = Failed(now_s, cause.text)
            expected = doomed and book.phase is not Phase.STARTING
            if book.phase is Phase.STOPPING:
                if not expected:
                    self.ending.died_late(cause, now_s)
            elif not expected and not child.finished:
                self.ending.fail(cause, now_s)
        self.ending.advance(now_s)

    def _died_at_work(self, child: Child, exited: ChildExited, cause: Cause, now_s: float) -> None:
        book = self.book
        if child.finished:
            child.state = Failed(now_s, cause.text)
            book.record("died_after_work", cause.text, source=child.name)
            return
        decision = decide(
            child.plan.restart,
            clean=exited.code == 0 and not isinstance(child.state, Doomed),
            significant=child.plan.significant,
            restarts=child.restarts,
            now_s=now_s,
        )
        match decision:
            case LetRest():
                child.state = Stopped(now_s)
                book.record("ended", cause.text, source=child.name)
            case GiveUp(why):
                text = f"{cause.text} ({why})" if why else cause.text
                child.state = Failed(now_s, text)
                cause = Cause(cause.actor, text, cause.exit_code, cause.signal, cause.log_tail)
                silence_s = book.timeouts.heartbeat_s
                others = book.children.values()
                self.ending.fail(earlier_silence(child, cause, others, silence_s, now_s), now_s)
            case Again(at_s, restarts):
                child.state = Restarting(now_s, at_s, cause.text)
                child.restarts = restarts
                self._announce(child, cause, at_s - now_s)

    def _announce(self, child: Child, cause: Cause, delay_s: float) -> None:
        # Peers hear of it at the death, not when the next one is ready: what they wait for from
        # the dead one is lost already, and the bus keeps what they send to the next one.
        child.incarnation += 1
        child.num_restarts += 1
        text = f"{cause.text}; incarnation {child.incarnation} starts in {delay_s:.1f} s"
        self.book.record(
            "restarted",
            text,
            source=child.name,
            incarnation=child.incarnation,
            log_tail=list(cause.log_tail),
        )
        self.losses.died(child)
        self.losses.tell()
        news = PeerRestarted(actor=child.name, incarnation=child.incarnation)
        for peer in self.book.in_state(Running):
            self.book.order(TellChild(peer.name, news))

    def _tick(self, now_s: float) -> None:
        for child, reason in self._watch.overdue(now_s):
            self.book.record("late", f"{child.name} {reason}", source=child.name)
            self.book.doom(child, reason, now_s)
        if self.book.phase is Phase.RUNNING:
            for child in self.book.in_state(Restarting):
                assert isinstance(child.state, Restarting)
                if now_s >= child.state.at_s:
                    self._start(child, now_s)
        self._watch.report(now_s)
        self.ending.tick(now_s)

    # ---- messages ------------------------------------------------------------------------

    def _said(self, said: Said, now_s: float) -> None:
        child = self.book.children.get(said.source)
        match said.message:
            case Hello():
                self._hello(said, said.message, now_s)
            case StepRecorded():
                done = steps_done(said.message.step, said.message.metrics)
                self.ending.last_step = max(self.ending.last_step, done)
                figures = self._figures.metrics() if VERSION in said.message.metrics else {}
                metrics = said.message.metrics | figures
                self.book.order(Record(structs.replace(said.message, metrics=metrics)))
            case EventReported():
                self.book.order(Record(said.message))
            case ResourceTaken() | ResourceReleased():
                self.book.order(Keep(said.message))
            case _ if child is None or said.incarnation != child.incarnation:
                pass  # the last words of a former incarnation change nothing
            case _:
                child.heard_s = now_s
                self._said_by(child, said.message, now_s)

    def _said_by(self, child: Child, message: Message, now_s: float) -> None:
        match message:
            case SaidReady():
                self._ready(child, message, now_s)
            case Heartbeat():
                if child.heartbeat is None or message.progress != child.heartbeat.progress:
                    child.progress_s = now_s
                child.heartbeat = message
                self._figures.heard(child.name, child.plan.kind, message.statistics)
            case WorkFinished():
                child.finished = True
                self.ending.finished(child.name, message)
                self.book.record("work_finished", f"{child.name} has finished", source=child.name)
                if self.book.work_is_done():
                    self.ending.work_done(now_s)
            case StopRun(reason=reason, at_once=at_once):
                self.ending.stop(f"{child.name}: {reason}", now_s, at_once=at_once)
            case PortOpened(endpoint=endpoint):
                child.ports = (*child.ports, endpoint)
                self.book.order(Keep(message))
            case GuardTripped():
                text = f"guard {message.guard}: {message.reason}"
                self.ending.fail(Cause(child.name, text), now_s, guard=message.guard)
            case _:
                text = f"{child.name} sent {type(message).__name__}, which no supervisor takes"
                self.ending.fail(Cause(child.name, text), now_s)

    def _hello(self, said: Said, hello: Hello, now_s: float) -> None:
        child = self.book.children.get(hello.actor)
        refusal = self._refusal(child, said, hello)
        if said.request is not None:
            answer = Refused(reason=refusal) if refusal else Welcome()
            self.book.order(Answer(said.request, answer))
        if refusal:
            self.book.record("refused", refusal, source=hello.actor)
            if child is not None and hello.incarnation == child.incarnation:
                child.last_words = refusal
        elif child is not None and isinstance(child.state, New):
            child.heard_s = now_s
            child.state = Greeted(now_s, now_s + self.book.timeouts.ready_s)

    def _refusal(self, child: Child | None, said: Said, hello: Hello) -> str:
        """Why this HELLO is not welcome; empty when it is."""
        if child is None or said.source != hello.actor:
            return f"{said.source} said HELLO as {hello.actor!r}, which is no actor of this run"
        if hello.incarnation != child.incarnation:
            return (
                f"{hello.actor} said HELLO as incarnation {hello.incarnation}, this run expects"
                f" {child.incarnation}: it was replaced, or its spec file is an old one"
            )
        if child.pid and hello.pid != child.pid:
            return f"{hello.actor} said HELLO from pid {hello.pid}, but its process is {child.pid}"
        if hello.schema != self._schema:
            return (
                f"{hello.actor} speaks message schema {hello.schema}, this supervisor"
                f" {self._schema}: start both from one commit"
            )
        if not isinstance(child.state, New | Greeted):
            return f"{hello.actor} said HELLO while it was {child.state_name}"
        return ""

    def _ready(self, child: Child, ready: SaidReady, now_s: float) -> None:
        if not isinstance(child.state, Greeted):
            return
        child.state, child.facts = Ready(now_s), ready.facts
        self.book.record("ready", f"{child.name} is ready", source=child.name, facts=ready.facts)
        facts_of = {each.name: each.facts for each in self.book.children.values()}
        if difference := disagreement(facts_of):
            self.ending.fail(Cause(child.name, difference), now_s)
            return
        if self.book.phase is Phase.RUNNING:
            self._begin(child, now_s)
        elif self.book.phase is Phase.STARTING and all_ready(self.book):
            self.book.enter(Phase.RUNNING, now_s)
            seconds = round(now_s - self.book.started_s, 3)
            self.book.record("begun", f"all actors are ready after {seconds} s", seconds=seconds)
            for each in self.book.children.values():
                self._begin(each, now_s)

    def _begin(self, child: Child, now_s: float) -> None:
        child.state = Running(now_s)
        child.heard_s = child.progress_s = now_s
        self.book.order(TellChild(child.name, Begin()))
        self.losses.tell()

    def _not_taken(self, event: NotTaken, now_s: float) -> None:
        child = self.book.children[event.actor]
        if isinstance(event.message, TokensAccounted):
            self.losses.not_told(event.message)
        kind = type(event.message).__name__
        text = f"{child.name} did not take {kind}: {event.reason}"
        current = event.incarnation == child.incarnation and isinstance(child.state, Running)
        if isinstance(event.message, Begin) and current:
            self.book.doom(child, text, now_s)
        elif current:
            self.book.record("not_taken", text, source=child.name)
