"""The thin half of the supervisor: events to the core, its effects to processes and the bus."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, assert_never

from milepost.actors.effects import Request
from milepost.actors.vitals import Vitals
from milepost.messages.bus import Bus, BusClosed, Incoming, Undelivered
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    Drain,
    EventReported,
    FreezeRequested,
    PinRequested,
    RecorderRead,
    Refused,
    Snapshot,
    SnapshotRequested,
    StepRecorded,
    TapRead,
    ThawRequested,
)
from milepost.supervisor.asking import BAD_NEWS, Asking
from milepost.supervisor.attach import PassedOn
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.core import SupervisorCore
from milepost.supervisor.display import Display
from milepost.supervisor.events import (
    Answer,
    Broken,
    DrainChild,
    DrainEnded,
    Effect,
    Event,
    Finish,
    Keep,
    NotTaken,
    Record,
    Said,
    SignalChild,
    StartChild,
    StopRequested,
    TellChild,
    Tick,
)
from milepost.supervisor.family import Family
from milepost.supervisor.outcome import Verdict
from milepost.supervisor.recording.recorder import Recorder
from milepost.supervisor.recording.summary import Scores
from milepost.supervisor.snapshot import Recent, build_snapshot
from milepost.supervisor.stacks import stacks_of

TIMER_S_MIN: Final = 0.002


class Shell:
    """Runs one core until it finishes.

    Args:
        core: the decisions.
        bus: the supervisor's mailbox.
        recorder: where steps and events are written.
        display: what shows them.
        about: constant facts of the run, part of every snapshot.
        tell_s: until a message to a child must be taken.
    """

    def __init__(
        self,
        core: SupervisorCore,
        bus: Bus,
        recorder: Recorder,
        display: Display,
        about: dict[str, Any],
        tell_s: float,
    ) -> None:
        self._core = core
        self._bus = bus
        self._recorder = recorder
        self._display: Display | None = display
        self._about = about
        self._tell_s = tell_s
        self._loop = asyncio.get_running_loop()
        self._family: Family | None = None
        self._events: deque[Event] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._requests: dict[Request, Incoming] = {}
        self._recent = Recent()
        self._vitals = Vitals()
        self.scores = Scores()
        self.asking = Asking(bus, core.book.children)
        self.verdict: asyncio.Future[Verdict] = self._loop.create_future()

    @property
    def family(self) -> Family:
        """The processes; set once, before `start`."""
        assert self._family is not None, "the family is not there yet"
        return self._family

    @family.setter
    def family(self, family: Family) -> None:
        self._family = family

    # ---- events to the core --------------------------------------------------------------

    def start(self) -> None:
        """Order the children."""
        self._pump(self._core.start)
        self._pump_events()

    def handle(self, event: Event) -> None:
        """Take one event, from the event loop's thread; events that follow from it come after."""
        self._events.append(event)
        if not self._busy:
            self._pump_events()

    def _pump_events(self) -> None:
        while self._events and not self.verdict.done():
            self._pump(lambda now_s: self._core.handle(self._events.popleft(), now_s))

    async def receive(self) -> None:
        """Hand every message of the actors to the core, until the bus is closed."""
        while True:
            # A disk that cannot keep up slows the actors down, by credit; it does not fill memory.
            await self._recorder.room()
            try:
                incoming = await self._bus.receive()
            except BusClosed:
                return
            self._heard(incoming)

    def broken(self, reason: str) -> None:
        """Something of the supervisor's own does not work any more."""
        self.handle(Broken(reason))

    def stop_clock(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()

    def _pump(self, decide: Callable[[float], list[Effect]]) -> None:
        self._busy = True
        try:
            for effect in decide(time.monotonic()):
                self._carry_out(effect)
        except Exception as error:  # noqa: BLE001 - a broken supervisor ends the run, by name
            if not self.verdict.done():
                self.verdict.set_exception(error)
        finally:
            self._busy = False
        self._set_timer()

    def _set_timer(self) -> None:
        self.stop_clock()
        if not self.verdict.done():
            now_s = time.monotonic()
            delay_s = max(TIMER_S_MIN, self._core.next_wake_s(now_s) - now_s)
            self._timer = self._loop.call_later(delay_s, self.handle, Tick())

    def _heard(self, incoming: Incoming) -> None:
        if isinstance(incoming.message, SnapshotRequested) and incoming.wants_reply:
            self._bus.reply(incoming, self.snapshot())
            return
        request = None
        if incoming.wants_reply:
            request = Request(incoming.source, incoming.message_id)
            self._requests[request] = incoming
        said = Said(incoming.source, incoming.source_incarnation, incoming.message, request)
        self.handle(said)
        if request is not None and self._requests.pop(request, None) is not None:
            name = type(incoming.message).__name__
            self._bus.reply(incoming, Refused(reason=f"{name} is no question for a supervisor"))

    # ---- effects -------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case StartChild(actor, incarnation):
                if incarnation:
                    # Questions that the dead one took fail now, not at their deadlines.
                    self._bus.peer_is_now(actor, incarnation)
                self.family.start(actor, incarnation)
            case SignalChild(actor, name):
                self.family.send_signal(actor, name)
            case TellChild(actor, message):
                self._tell(actor, message)
            case DrainChild(actor, message):
                self._drain(actor, message)
            case Answer(request, message):
                incoming = self._requests.pop(request, None)
                if incoming is not None:
                    self._bus.reply(incoming, message)
            case Record(message):
                self.record(message)
            case Keep(message):
                self.family.keep(message)
            case Finish(verdict):
                self.verdict.set_result(verdict)
            case _ as unreachable:
                assert_never(unreachable)

    def _tell(self, actor: str, message: Message) -> None:
        incarnation = self._core.book.children[actor].incarnation
        sent = self._bus.tell(actor, message, deadline_s=self._tell_s)

        def told(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self.handle(NotTaken(actor, incarnation, message, _reason(error)))

        sent.add_done_callback(told)

    def _drain(self, actor: str, message: Drain) -> None:
        answer = self._bus.ask(actor, message, deadline_s=message.deadline_s)

        def answered(done: asyncio.Future[Incoming]) -> None:
            if not done.cancelled():
                error = done.exception()
                self.handle(DrainEnded(actor, _reason(error) if error else ""))

        answer.add_done_callback(answered)

    def record(self, message: EventReported | StepRecorded) -> None:
        """Write and show one step or event."""
        self._recent.note(message, time.time())
        self._recorder.record(message)
        if isinstance(message, EventReported):
            self.scores.note(message)
            if message.kind in BAD_NEWS:
                self.asking.pin_all(f"{message.source} {message.kind}: {message.text}")
            self._show(lambda display: display.on_event(message))
        else:
            self._show(lambda display: display.on_step(message.step, message.metrics))

    def tell_people(self, kind: str, text: str) -> None:
        """Record an event of the supervisor's own."""
        self.record(EventReported(source=SUPERVISOR, kind=kind, text=text))

    def show_snapshot(self) -> None:
        """Show the state of the run."""
        snapshot = self.snapshot()
        self._show(lambda display: display.on_snapshot(snapshot))

    def _show(self, call: Callable[[Display], None]) -> None:
        if self._display is None:
            return
        try:
            call(self._display)
        except Exception as error:  # noqa: BLE001 - who watches a run must never end it
            self._display = None
            text = f"the display failed and shows no more: {type(error).__name__}: {error}"
            lines = traceback.format_exception(error)
            self.record(
                EventReported(
                    source=SUPERVISOR, kind="display_failed", text=text, values={"lines": lines}
                )
            )

    # ---- what clients ask (attach.Desk) ----------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        statistics = {**self._vitals.read(), "bus": asdict(self._bus.statistics())}
        about = {**self._about, "statistics": statistics}
        return build_snapshot(self._core.book, self._recent, about, time.monotonic())

    def request_stop(self, reason: str, *, at_once: bool) -> str:
        """Order the end; returns the phase of the run after it."""
        self.handle(StopRequested(reason, at_once))
        return str(self._core.book.phase)

    def ask_stacks(self, actor: str) -> asyncio.Task[Message]:
        """Ask an actor for its stacks; the result is `Stacks` or `Refused`."""
        return asyncio.create_task(self._stacks(actor), name=f"stacks of {actor}")

    def actor_names(self) -> tuple[str, ...]:
        """Every actor of the run."""
        return tuple(self._core.book.children)

    def pass_on(self, wanted: PassedOn) -> asyncio.Task[Message]:
        """Ask one actor or several; the result is their answer or `Refused`."""
        match wanted:
            case TapRead() | RecorderRead():
                asked = self.asking.pass_on(wanted)
            case PinRequested():
                asked = self.asking.pin(wanted)
            case FreezeRequested():
                asked = self.asking.freeze(wanted)
            case ThawRequested():
                asked = self.asking.thaw(wanted)
        return asyncio.create_task(asked, name=type(wanted).__name__)

    async def _stacks(self, actor: str) -> Message:
        child = self._core.book.children.get(actor)
        if child is None:
            return self.asking.unknown(actor)
        return await stacks_of(child, self._bus, self.family)


def _reason(error: BaseException) -> str:
    return error.reason if isinstance(error, Undelivered) else f"{type(error).__name__}: {error}"
