"""The recorder as the shell uses it: what waits, for how long, and what never does."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from unit.recorder.test_recorder import OPENED, lines_of, opened, recorder_path

from milepost.actors.effects import Effect, Fail, Received, Taken, Tell, Wake, Work, WorkDone
from milepost.actors.hold import Told
from milepost.actors.recorder.calls import CarriedOut, Order
from milepost.actors.recorder.content import value_of
from milepost.actors.recorder.desk import WAIT_S, WAITING_MAX, RecorderDesk
from milepost.actors.recorder.lines import Decision
from milepost.actors.recorder.payloads import read_payloads
from milepost.actors.recorder.reading import read_recording, read_recordings
from milepost.actors.recorder.recorder import FOLDER
from milepost.actors.shell import ActorFailed
from milepost.messages.bulk import Bulk
from milepost.messages.engine import Generate
from milepost.messages.shared import Message, SamplingParams
from milepost.messages.supervisor import RecorderLines, RecorderRead, Refused


async def test_a_full_recording_waits_for_nothing(tmp_path: Path) -> None:
    """What a result holds may be another a moment later."""
    recorder = opened(tmp_path, payloads=True)
    result = [1]
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    desk.record(Told(WorkDone("k", result)), 0.0, 0.0, [], [], None)
    assert [line.type for line in lines_of(tmp_path)] == ["list"]
    recorder.close()
    ((_, content),) = read_payloads(tmp_path / FOLDER / "buffer-0.payloads")
    assert value_of(content) == [1]


@dataclass(frozen=True, slots=True)
class Ordered(Work):
    """Work on an array."""

    request: Generate


async def test_nothing_large_waits_to_be_written(tmp_path: Path) -> None:
    """Whoever lent the memory that a message lies in wants it back when nobody reads it any more;
    work and its results are lines without what they hold."""
    recorder = opened(tmp_path)
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    lent = bytearray(8)

    def tell(told: Told, *done: CarriedOut) -> int:
        desk.record(told, 0.0, 0.0, [], [*done], None)
        return len(lines_of(tmp_path))

    def borrowed() -> Generate:
        bulk = Bulk("uint8", (8,), memoryview(lent))
        given = SamplingParams(tokens_max=1)
        return Generate(request_id="r", session_id="s", token_ids=bulk, sampling=given)

    def give_back() -> None:
        lent.append(1)  # which memory that somebody reads refuses
        del lent[-1]

    waits, without_digest = Told(Received("a", OPENED), 6, 0, 9), Told(Received("a", borrowed()), 7)
    assert tell(waits) == 0
    assert tell(without_digest) == 2
    assert tell(waits, (Tell("b", borrowed()), 9, 0)) == 3
    del without_digest
    give_back()
    done = WorkDone("k", [borrowed()])
    assert tell(Told(done), Order.of(Ordered("w", borrowed()))) == 3
    del done
    give_back()
    recorder.close()
    lines = lines_of(tmp_path)
    assert [line.type for line in lines] == ["GroupOpened", "Generate", "GroupOpened", "list"]
    assert lines[-1].decisions == [Decision("work", type="Ordered", key="w")]


async def test_a_call_that_failed_is_written_with_what_was_not_carried_out(tmp_path: Path) -> None:
    """The effect that failed, and those behind it, are what somebody looks for."""
    recorder = opened(tmp_path)
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    effects: list[Effect] = [Tell("a", OPENED), Fail("over"), Work("w"), Wake("late", 1.0)]
    done: list[CarriedOut] = [(Tell("a", OPENED), 3, 4)]
    desk.record(Told(None), 0.0, 0.0, effects, done, ActorFailed("over"))
    (line,) = lines_of(tmp_path)
    assert line.error == "ActorFailed: over"
    assert [each.kind for each in line.decisions] == ["tell", "fail", "work", "wake"]
    assert [each.message_id for each in line.decisions] == [3, 0, 0, 0]
    recorder.close()


async def test_calls_are_written_after_a_moment_and_at_the_latest_when_many_wait(
    tmp_path: Path,
) -> None:
    """That moment is all that `kill -9` takes from a recording."""
    recorder = opened(tmp_path)
    loop = asyncio.get_running_loop()
    desk = RecorderDesk(recorder, loop)

    def call(num: int) -> None:
        for _ in range(num):
            desk.record(Told(Received("a", OPENED)), 0.0, 0.0, [], [], None)

    call(3)
    assert read_recording(recorder_path(tmp_path)).lines == []
    passed = loop.create_future()
    loop.call_later(WAIT_S, passed.set_result, None)  # behind that of the recorder
    await passed
    assert len(lines_of(tmp_path)) == 3
    call(WAITING_MAX + 2)
    assert len(lines_of(tmp_path)) == 3 + WAITING_MAX
    desk.failed(ValueError("x"))
    assert len(lines_of(tmp_path)) == 3 + WAITING_MAX + 2
    (found,) = read_recordings(tmp_path / FOLDER)
    assert list(found.pins.values()) == ["ValueError: x"]
    recorder.close()


def test_what_waits_is_written_when_the_loop_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at a process that hung wants to know what it did just before."""
    monkeypatch.setattr("milepost.actors.recorder.recorder.STUCK_S", 0.01)
    recorder = opened(tmp_path)
    recorder.waiting.append((Told(Taken("late")), 0.0, 0.0, [], None))
    recorder.waiting.append((Told(Taken("later")), 0.0, time.time() + 3600, [], None))
    recorder.watch()
    end_s = time.monotonic() + 60
    while recorder.waiting or not read_recording(recorder_path(tmp_path)).lines:
        assert time.monotonic() < end_s, "nobody writes"
    assert [line.key for line in lines_of(tmp_path)] == ["late", "later"]
    recorder.waiting.append((Told(Taken("young")), 0.0, time.time() + 3600, [], None))
    recorder.close()
    assert [line.number for line in lines_of(tmp_path)] == [0, 1, 2]


READ = RecorderRead(actor="buffer", about="g0000001")


async def answered(desk: RecorderDesk, refusing: type[Message] | None = None) -> list[Message]:
    """What is replied to `READ`; messages of a type `refusing` are too large to travel."""
    got: list[Message] = []
    is_answered = asyncio.get_running_loop().create_future()

    def reply(message: Message) -> None:
        if refusing is not None and isinstance(message, refusing):
            raise ValueError("larger than any receiver would accept")
        got.append(message)
        is_answered.set_result(None)

    desk.answer(READ, reply)
    await asyncio.wait({is_answered}, timeout=60)
    return got


async def test_an_answer_that_fails_is_a_refusal_a_line_of_the_log_and_a_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Swallowed, who asked would be told after a while that the actor is busy, which it is not."""
    recorder = opened(tmp_path)
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    desk.record(Told(Received("a", OPENED)), 0.0, 0.0, [], [], None)
    assert isinstance((await answered(desk))[0], RecorderLines)
    descriptor = os.open(recorder_path(tmp_path), os.O_RDWR)
    os.pwrite(descriptor, bytes(8), 0)
    os.close(descriptor)
    with caplog.at_level(logging.ERROR):
        (damaged,) = await answered(desk)
        assert isinstance(damaged, Refused)
        assert "the recorder failed: RingDamaged" in damaged.reason
    assert "the recorder could not answer RecorderRead" in caplog.text
    statistics = desk.statistics()["recorder"]
    assert isinstance(statistics, dict)
    assert statistics["failed"] == 1
    recorder.close()


async def test_an_answer_that_cannot_travel_is_a_refusal(tmp_path: Path) -> None:
    """A ring of any size may be asked for; a message has its limit."""
    recorder = opened(tmp_path)
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    desk.record(Told(Received("a", OPENED)), 0.0, 0.0, [], [], None)
    (refused,) = await answered(desk, refusing=RecorderLines)
    assert isinstance(refused, Refused)
    assert "larger than any receiver would accept" in refused.reason
    recorder.close()


async def test_a_pin_that_fails_is_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks for it finds at least why it is not there."""
    recorder = opened(tmp_path)
    desk = RecorderDesk(recorder, asyncio.get_running_loop())
    recorder.folder = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        desk._pin_for(recorder, ["guard loss: it is infinite"])
        end_s = time.monotonic() + 60
        while "could not pin" not in caplog.text:
            assert time.monotonic() < end_s, "nobody hears of it"
            await asyncio.sleep(0)
    recorder.close()
