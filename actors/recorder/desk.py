"""The recorder as the shell of an actor uses it: never an error of its own, never a wait."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from milepost.actors.effects import Effect, WorkDone
from milepost.actors.recorder.calls import Call, CarriedOut, lasting, ordered
from milepost.actors.recorder.lines import Line, encode_lines
from milepost.actors.recorder.pins import PinsFull
from milepost.actors.recorder.reading import read_lines
from milepost.actors.recorder.recorder import Recorder
from milepost.actors.recorder.ring import read_image
from milepost.actors.recorder.story import story
from milepost.actors.recorder.tracing import about
from milepost.messages.shared import Message
from milepost.messages.supervisor import Pinned, PinRequested, RecorderLines, RecorderRead, Refused

if TYPE_CHECKING:
    from milepost.actors.hold import Told

WAIT_S: Final = 0.1
"""How long a call waits to be written down together with others."""
WAITING_MAX: Final = 128
"""Calls that wait."""
MEASURED: Final = 2
"""Calls of a bunch whose processor time is taken: looking at that clock costs as much as one."""
OFF = "system.recorder.enabled is false"
log = logging.getLogger(__name__)


class RecorderDesk:
    """Records, pins and answers, if there is a recorder at all.

    Args:
        recorder: of this actor; None: it is turned off.
        loop: of this thread. What takes long is done on a thread of its pool.
    """

    def __init__(self, recorder: Recorder | None, loop: asyncio.AbstractEventLoop) -> None:
        self._recorder = recorder
        self._loop = loop
        self._waiting = recorder.waiting if recorder is not None else []
        self._apart = recorder is None or recorder.keeps_contents
        self._timer_runs = False
        self._spent_s = [0.0] * MEASURED
        self._num_failed = 0

    def record(
        self,
        told: Told,
        now_s: float,
        at_s: float,
        effects: Sequence[Effect],
        carried_out: list[CarriedOut],
        failure: Exception | None,
    ) -> None:
        """One call of the core, written down after `WAIT_S`, or as soon as the loop is free then.

        At once with a message that has no digest: it may lie in memory that somebody waits for.

        Args:
            told: what the core was told.
            now_s: the core's time.
            at_s: time of the day, before anything that it led to.
            effects: what the core ordered.
            carried_out: the same as a line needs it, as far as nothing failed.
            failure: what the core, or an effect, raised.
        """
        if self._apart or failure is not None:
            self._record_apart((told, now_s, at_s, carried_out, failure), effects)
            return
        # Between two messages code and data leave the processor's caches, and whatever is touched
        # here costs several times what it costs in a loop: so there is little of it.
        waiting = self._waiting
        count = len(waiting)
        if count < MEASURED:
            self._record_first(told, now_s, at_s, carried_out)
        elif type(told.event) is WorkDone:
            waiting.append((lasting(told), now_s, at_s, carried_out, None))
        else:
            waiting.append((told, now_s, at_s, carried_out, None))
        if count >= WAITING_MAX - 1 or (told.message_id and not told.digest):
            self._write()
            return
        for done in carried_out:
            if type(done) is tuple and done[1] and not done[2]:
                self._write()
                return

    def _record_first(
        self, told: Told, now_s: float, at_s: float, carried_out: list[CarriedOut]
    ) -> None:
        """The same for the first calls of a bunch, which tell what all of them take."""
        started_s = time.thread_time()
        looked_s = time.thread_time()
        count = len(self._waiting)
        self._waiting.append((lasting(told), now_s, at_s, carried_out, None))
        if not self._timer_runs:
            self._timer_runs = True
            self._loop.call_later(WAIT_S, self._timer_ends)
        ended_s = time.thread_time()
        # The calls behind these are kept without looking at the clock.
        look_s = looked_s - started_s if count else 0.0
        self._spent_s[count] = max(0.0, ended_s - (looked_s if count else started_s) - look_s)

    def _record_apart(self, call: Call, effects: Sequence[Effect]) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        told, now_s, at_s, carried_out, failure = call
        if recorder.keeps_contents:
            self._pin_for(recorder, recorder.write_whole(call, effects))
            return
        rest = map(ordered, effects[len(carried_out) :])
        self._waiting.append((lasting(told), now_s, at_s, [*carried_out, *rest], failure))
        self._write()

    def _timer_ends(self) -> None:
        self._timer_runs = False
        self._write()

    def _write(self) -> None:
        """Write lines; what is bad news in them is pinned, and told in the log."""
        recorder, count = self._recorder, len(self._waiting)
        assert recorder is not None, "nothing waits for no recorder"
        spent_s = self._spent_s[0] if count else 0.0
        if others := self._spent_s[1:count]:
            spent_s += (count - 1) * sum(others) / len(others)
        self._pin_for(recorder, recorder.write(spent_s))

    def _pin_for(self, recorder: Recorder, reasons: Sequence[str]) -> None:
        for reason in reasons:
            pinning = self._loop.run_in_executor(None, _tell, recorder, reason, recorder.image())
            pinning.add_done_callback(self._pinned)

    def _pinned(self, pinning: asyncio.Future[None]) -> None:
        if not pinning.cancelled() and (error := pinning.exception()) is not None:
            self._heard(error, "pin what went wrong")

    def _heard(self, error: BaseException, what: str) -> None:
        """Nobody waits for the recorder, so what it fails at is told here or nowhere."""
        self._num_failed += 1
        log.error("the recorder could not %s", what, exc_info=error)

    def failed(self, error: BaseException) -> None:
        """The actor ends by this: pin what led to it, and note it with the error."""
        recorder = self._recorder
        if recorder is None:
            return
        reason = f"{type(error).__name__}: {error}"
        _pin(recorder, reason, recorder.image())
        error.add_note(story(recorder.folder, recorder.run_id, recorder.actor, reason))

    def answer(self, asked: RecorderRead | PinRequested, reply: Callable[[Message], None]) -> None:
        """Answer from a copy of the ring, on another thread.

        Whatever goes wrong there is told to who asked.
        """
        if self._recorder is None:
            reply(Refused(reason=OFF))
            return
        work = self._loop.run_in_executor(
            None, _answer, self._recorder, asked, self._recorder.image()
        )
        work.add_done_callback(partial(self._answered, type(asked).__name__, reply))

    def _answered(
        self, asked: str, reply: Callable[[Message], None], work: asyncio.Future[Message]
    ) -> None:
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            try:
                reply(work.result())
            except (TypeError, ValueError) as cannot_travel:
                error = cannot_travel
        if error is not None:
            self._heard(error, f"answer {asked}")
            reply(Refused(reason=f"the recorder failed: {type(error).__name__}: {error}"))

    def statistics(self) -> dict[str, object]:
        """For the heartbeat."""
        if self._recorder is None:
            return {}
        return {"recorder": {**self._recorder.statistics(), "failed": self._num_failed}}


def _tell(recorder: Recorder, reason: str, image: bytes) -> None:
    if _pin(recorder, reason, image):
        told = story(recorder.folder, recorder.run_id, recorder.actor, reason)
        sys.stderr.write(f"{told}{reason}\n")
        sys.stderr.flush()


def _pin(recorder: Recorder, reason: str, image: bytes) -> str:
    """The file; empty when it cannot be written, which the log says."""
    try:
        return recorder.pin(reason, image)
    except (PinsFull, OSError) as error:
        sys.stderr.write(f"the recorder cannot pin: {error}; it was about: {reason}\n")
        return ""


def _answer(recorder: Recorder, asked: RecorderRead | PinRequested, image: bytes) -> Message:
    match asked:
        case PinRequested(reason=reason):
            try:
                return Pinned(files=[recorder.pin(reason, image)])
            except (PinsFull, OSError) as error:
                return Refused(reason=str(error))
        case RecorderRead():
            facts, records = read_image(image)
            lines = read_lines(facts, records)
            found = [encode_lines([line]) for line in about(lines, asked.about)]
            kept = _latest(found, asked.bytes_max)
            return RecorderLines(
                about=facts,
                lines=kept,
                left_out=len(found) - len(kept),
                reaches_back=_reaches_back(lines),
            )


def _reaches_back(lines: Sequence[Line]) -> bool:
    return not lines or lines[0].number == 0


def _latest(lines: Sequence[bytes], bytes_max: int) -> list[bytes]:
    kept: list[bytes] = []
    for line in reversed(lines):
        bytes_max -= len(line)
        if bytes_max < 0:
            break
        kept.append(line)
    return kept[::-1]
