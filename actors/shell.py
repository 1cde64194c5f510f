"""The thin half of every actor: turns I/O into events for a pure core, and effects into I/O.

A core's `handle` is synchronous and never re-entered: messages, answers, timers and results of
long work reach it one after the other on the event loop. Long work (`Work`) runs beside it, and
comes back as an event, so a handler always finishes and its assertions hold throughout.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import to_builtins

from milepost.actors.effects import (
    Answered,
    Ask,
    Core,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.gpu import GpuFigures
from milepost.actors.hold import Hold, Told
from milepost.actors.lives import InOrder
from milepost.actors.questions import Questions
from milepost.actors.recorder.calls import NOTHING_SENT, CarriedOut, Order
from milepost.actors.recorder.desk import RecorderDesk
from milepost.actors.stacks import all_stacks
from milepost.actors.vitals import Vitals, for_people
from milepost.messages.bus import Unanswered as NoAnswer
from milepost.messages.bus import Undelivered
from milepost.messages.supervisor import (
    Begin,
    Drain,
    EventReported,
    FreezeRequested,
    Heartbeat,
    PinRequested,
    Ready,
    RecorderRead,
    Refused,
    Stacks,
    StacksRequested,
    TapRead,
    ThawRequested,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from milepost.actors.context import ActorContext
    from milepost.messages.bus import Incoming
    from milepost.messages.shared import Message

HEARTBEAT_S = 1.0
NOT_BEGUN = Refused(reason="it has not begun")


class ActorFailed(RuntimeError):
    """The actor cannot go on; the text is its last word."""


class Shell:
    """Runs one core over one bus until it is told to stop or fails.

    Args:
        context: who this actor is.
        core: its pure half.
        perform: carries out `Work` effects; its result, or the text of its exception, comes
            back to the core as `WorkDone`.
    """

    def __init__(
        self,
        context: ActorContext,
        core: Core,
        perform: Callable[[Work], Awaitable[object]] | None,
    ) -> None:
        self._context = context
        self._bus = context.bus
        self._core = core
        self._perform = perform
        self._timeouts = context.topology.system.timeouts
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._questions = Questions(self._bus.is_waited_for)
        self._in_order = InOrder(self._loop, self._bus.peer_is_now, self._bus.has_died, self._meet)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._works: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[Incoming] = []
        self._begun = False
        self._cause = 0
        self._num_events = 0
        self._vitals = Vitals()
        self._gpus = GpuFigures.of(context.spec)
        self._recorder = RecorderDesk(context.recorder, self._loop)
        self._hold = Hold(
            context.name,
            context.topology.system,
            later=self._loop.call_later,
            report=self._report,
            resume=self._resume,
        )

    async def run(self, facts: dict[str, object]) -> None:
        """Say READY, wait for BEGIN, then serve until `stop`.

        Raises:
            ActorFailed: a `Fail` effect, or an exception inside the core.
        """
        ready = Ready(actor=self._context.name, facts=facts)
        await self._bus.tell("supervisor", ready, deadline_s=self._timeouts.tell_s)
        tasks = [
            asyncio.create_task(self._receive(), name="receive"),
            asyncio.create_task(self._beat(), name="heartbeat"),
        ]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            await self._ended
            # The last one of a good end: what it counts is what the whole run came to.
            self._send_beat()
        finally:
            if self._gpus is not None:
                self._gpus.close()
            self._hold.close()
            for handle in self._timers.values():
                handle.cancel()
            for task in (*tasks, *self._works.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._works.values(), return_exceptions=True)

    def stop(self) -> None:
        """End `run` without an error."""
        if not self._ended.done():
            self._ended.set_result(None)

    def feed(self, event: Event) -> None:
        """Hand the core one event, from the event loop's own thread."""
        self._handle(Told(event))

    # ---- I/O to events -------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            incoming = await self._bus.receive()
            match incoming.message:
                case Begin():
                    self._begin()
                case StacksRequested():
                    self._bus.reply(incoming, Stacks(text=all_stacks()))
                case TapRead():
                    self._bus.reply(incoming, self._bus.read_tap(incoming.message))
                case RecorderRead() | PinRequested():
                    self._recorder.answer(incoming.message, partial(self._bus.reply, incoming))
                case FreezeRequested(seconds=seconds):
                    answer = self._hold.freeze(seconds) if self._begun else NOT_BEGUN
                    self._bus.reply(incoming, answer)
                case ThawRequested():
                    self._bus.reply(incoming, self._hold.thaw("milepost thaw"))
                case Drain(gone=gone):
                    self._bus.will_not_return(gone)
                    self._hold.thaw("the run drains")
                    self._meet(incoming)
                case _:
                    self._in_order.take(incoming, self._meet)

    def _meet(self, incoming: Incoming) -> None:
        if self._begun:
            self._deliver(incoming)
        else:
            # A peer began before us; what it says waits until we begin.
            self._waiting.append(incoming)

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._decide(Told(None))
        waiting, self._waiting = self._waiting, []
        for incoming in waiting:
            self._deliver(incoming)

    def _deliver(self, incoming: Incoming) -> None:
        request = self._questions.add(incoming) if incoming.wants_reply else None
        event = Received(incoming.source, incoming.message, request)
        self._handle(Told(event, incoming.message_id, incoming.cause, incoming.digest))

    def _handle(self, told: Told) -> None:
        if self._ended.done():
            return
        if self._hold.is_on:
            self._hold.keep(told)
            return
        if not isinstance(told.event, Woken):
            # A timer alone is no progress: an actor that only polls counts as stalled.
            self._num_events += 1
        self._decide(told)

    def _decide(self, told: Told) -> None:
        core, event, now_s = self._core, told.event, self._hold.now_s()
        # Taken before what it leads to is sent: whoever gets that has a later one.
        at_s = time.time()
        effects: list[Effect] = []
        done: list[CarriedOut] = []
        # What it leads to carries its id; without one, what it follows from itself.
        self._cause = told.message_id or told.cause
        failure: Exception | None = None
        try:
            effects = core.start(now_s) if event is None else core.handle(event, now_s)
            for effect in effects:
                done.append(self._carry_out(effect))  # noqa: PERF401 - a failure keeps the rest
        except Exception as error:  # noqa: BLE001 - the one place where an actor's failure ends it
            failure = error
        self._cause = 0
        try:
            self._recorder.record(told, now_s, at_s, effects, done, failure)
        finally:
            if failure is not None:
                self._fail(failure)

    def _fail(self, error: BaseException) -> None:
        if not self._ended.done():
            # First: whatever the recorder makes of it, this actor ends.
            self._ended.set_exception(error)
            self._recorder.failed(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # ---- effects to I/O ------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> CarriedOut:
        """Do it; what is recorded of it."""
        match effect:
            case Tell():
                self._tell(effect)
            case Ask():
                self._ask(effect)
            case Reply():
                incoming = self._questions.take(effect.request)
                if incoming is None:
                    return effect, *NOTHING_SENT
                self._bus.reply(incoming, effect.message)
            case Wake():
                self._wake(effect)
                return effect
            case Fail():
                raise ActorFailed(effect.reason)
            case _:
                self._work(effect)
                return Order.of(effect)
        return effect, *self._bus.last_sent

    def _tell(self, effect: Tell) -> None:
        deadline_s = effect.deadline_s or self._timeouts.tell_s
        sent = self._bus.tell(effect.to, effect.message, deadline_s=deadline_s, cause=self._cause)

        def told(done: asyncio.Future[None]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._undelivered(effect.key, effect.to, error)
            elif effect.confirm:
                self._handle(Told(Taken(effect.key)))

        sent.add_done_callback(told)

    def _ask(self, effect: Ask) -> None:
        deadline_s = effect.deadline_s or self._timeouts.ask_s
        answer = self._bus.ask(effect.to, effect.message, deadline_s=deadline_s, cause=self._cause)

        def answered(done: asyncio.Future[Incoming]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._undelivered(effect.key, effect.to, error)
                return
            deliver = partial(self._answered, effect.key)
            self._in_order.take(done.result(), deliver, answers=True)

        answer.add_done_callback(answered)

    def _answered(self, key: str, incoming: Incoming) -> None:
        event = Answered(key, incoming.source, incoming.message)
        self._handle(Told(event, incoming.message_id, incoming.cause, incoming.digest))

    def _undelivered(self, key: str, to: str, error: BaseException) -> None:
        if isinstance(error, NoAnswer | Undelivered):
            self._handle(Told(Unanswered(key, to, str(error), error.no_room)))
        else:
            self._fail(error)

    def _wake(self, effect: Wake) -> None:
        if (old := self._timers.pop(effect.key, None)) is not None:
            old.cancel()

        def woken() -> None:
            if self._hold.is_on:
                self._hold.keep_wake(effect)
                return
            # The loop counts whole milliseconds, from when it last looked at the clock: it may be
            # early, and whoever is woken before the time finds nothing due and waits for ever.
            if (left_s := effect.at_s - self._hold.now_s()) > 0:
                self._timers[effect.key] = self._loop.call_later(left_s, woken)
                return
            del self._timers[effect.key]
            self._handle(Told(Woken(effect.key)))

        delay_s = max(0.0, effect.at_s - self._hold.now_s())
        self._timers[effect.key] = self._loop.call_later(delay_s, woken)

    def _work(self, work: Work) -> None:
        assert self._perform is not None, f"{self._context.name} has no hands for {work}"
        assert work.key not in self._works, f"work {work.key} is already being done"
        perform, cause = self._perform, self._cause

        async def do() -> None:
            try:
                done = WorkDone(work.key, await perform(work))
            # Some failures are no `Exception` (torch's checkpoints, a wait that others cancelled):
            # swallowed, they would leave the core waiting for ever. It decides what they mean.
            except BaseException as error:
                if self._works[work.key].cancelling():
                    raise  # by us: this actor ends
                done = WorkDone(work.key, None, f"{type(error).__name__}: {error}")
            del self._works[work.key]
            self._handle(Told(done, cause=cause))

        self._works[work.key] = self._loop.create_task(do(), name=work.key)

    # ---- being held ------------------------------------------------------------------------

    def _resume(self, kept: list[Told], wakes: list[Wake]) -> None:
        for wake in wakes:
            self._wake(wake)
        for told in kept:
            self._handle(told)

    def _report(self, kind: str, text: str) -> None:
        event = EventReported(source=self._context.name, kind=kind, text=text)
        sent = self._bus.tell("supervisor", event, deadline_s=self._timeouts.tell_s)
        sent.add_done_callback(_ignore_undelivered)

    # ---- heartbeat -----------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self._send_beat()
            await asyncio.sleep(HEARTBEAT_S)

    def _send_beat(self) -> None:
        self._questions.forget()
        sent = self._bus.tell(
            "supervisor", self._heartbeat(), deadline_s=self._timeouts.heartbeat_s
        )
        sent.add_done_callback(_ignore_undelivered)

    def _heartbeat(self) -> Message:
        if not self._begun:
            state, words = "ready", "waits for begin"
        elif self._hold.is_on:
            state, words = "frozen", self._hold.words()
        else:
            state, words = "running", for_people(self._core.working_on(), self._hold.now_s())
        return Heartbeat(
            actor=self._context.name,
            state=state,
            working_on=words,
            progress=self._num_events,
            statistics={
                **self._vitals.read(),
                **(self._gpus.newest() if self._gpus else {}),
                "bus": to_builtins(self._bus.statistics()),
                "open_requests": len(self._questions),
                "works": sorted(self._works),
                **self._recorder.statistics(),
                **self._core.statistics(),
            },
        )


def _ignore_undelivered(sent: asyncio.Future[None]) -> None:
    # The supervisor judges silence by itself; a beat that was not taken is not news to anyone.
    if not sent.cancelled():
        sent.exception()
