"""The recorder as the shell of an actor uses it: never an error of its own, never a wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from milepost.actors.effects import Effect
from milepost.actors.recorder.lines import Line, encode_line
from milepost.actors.recorder.pins import PinsFull
from milepost.actors.recorder.reading import read_lines
from milepost.actors.recorder.recorder import Call, Recorder, SentMessage
from milepost.actors.recorder.ring import read_image
from milepost.actors.recorder.story import anomaly_in, story
from milepost.actors.recorder.tracing import about
from milepost.messages.shared import Message
from milepost.messages.supervisor import Pinned, PinRequested, RecorderLines, RecorderRead, Refused

if TYPE_CHECKING:
    from milepost.actors.hold import Told

OFF = "system.recorder.enabled is false"


class RecorderDesk:
    """Records, pins and answers, if there is a recorder at all.

    Args:
        recorder: of this actor; None: it is turned off.
        loop: of this thread. What takes long is done on a thread of its pool.
    """

    def __init__(self, recorder: Recorder | None, loop: asyncio.AbstractEventLoop) -> None:
        self._recorder = recorder
        self._loop = loop
        self._flushes_soon = False

    def record(
        self,
        told: Told,
        now_s: float,
        at_s: float,
        effects: Sequence[Effect],
        sent: Sequence[SentMessage],
        failure: Exception | None,
    ) -> None:
        """One call of the core; written down before this thread waits for anything."""
        recorder = self._recorder
        if recorder is None:
            return
        call = Call(
            told.event,
            now_s,
            at_s,
            tuple(effects),
            sent,
            told.message_id,
            told.cause,
            told.digest,
            f"{type(failure).__name__}: {failure}" if failure is not None else "",
        )
        if recorder.note(call):
            self._flush(recorder)
        elif not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush_due, recorder)

    def _flush_due(self, recorder: Recorder) -> None:
        self._flushes_soon = False
        self._flush(recorder)

    def _flush(self, recorder: Recorder) -> None:
        """Write lines; what is bad news in them is pinned, and told in the log."""
        for call in recorder.flush():
            if reason := anomaly_in(call.effects):
                self._loop.run_in_executor(None, _tell, recorder, reason, recorder.image())

    def failed(self, error: BaseException) -> None:
        """The actor ends by this: pin what led to it, and note it with the error."""
        recorder = self._recorder
        if recorder is None:
            return
        reason = f"{type(error).__name__}: {error}"
        _pin(recorder, reason, recorder.image())
        error.add_note(story(recorder.folder, recorder.run_id, recorder.actor, reason))

    def answer(self, asked: RecorderRead | PinRequested, reply: Callable[[Message], None]) -> None:
        """Answer from a copy of the ring, on another thread."""
        if self._recorder is None:
            reply(Refused(reason=OFF))
            return
        work = self._loop.run_in_executor(
            None, _answer, self._recorder, asked, self._recorder.image()
        )
        work.add_done_callback(lambda done: reply(done.result()))

    def statistics(self) -> dict[str, object]:
        """For the heartbeat."""
        return {} if self._recorder is None else {"recorder": self._recorder.statistics()}


def _tell(recorder: Recorder, reason: str, image: bytes) -> None:
    if _pin(recorder, reason, image):
        told = story(recorder.folder, recorder.run_id, recorder.actor, reason)
        sys.stderr.write(f"{told}{reason}\n")
        sys.stderr.flush()


def _pin(recorder: Recorder, reason: str, image: bytes) -> str:
    """The file; empty when it cannot be written, which the log says."""
    try:
        return recorder.pin(reason, image)
    except PinsFull:
        return ""
    except OSError as error:
        sys.stderr.write(f"the recorder cannot pin: {error}\n")
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
            found = [encode_line(line) for line in about(lines, asked.about)]
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
