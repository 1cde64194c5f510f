"""The recorder of one actor: lines, pins, what an earlier life left, and the story of a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from milepost.actors.effects import (
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Wake,
    Work,
    WorkDone,
)
from milepost.actors.hold import Told
from milepost.actors.recorder.calls import Call, lasting, ordered
from milepost.actors.recorder.desk import _tell
from milepost.actors.recorder.lines import Line
from milepost.actors.recorder.pins import PinsFull, pin_rings
from milepost.actors.recorder.reading import read_lines, read_recording, read_recordings
from milepost.actors.recorder.recorder import FOLDER, Recorder
from milepost.actors.recorder.ring import RingDamaged, read_image
from milepost.actors.recorder.story import LINES_MAX, anomaly_in, story
from milepost.actors.shell import ActorFailed
from milepost.configs.run import RunConfig
from milepost.configs.spec import ActorSpec
from milepost.configs.system import RecorderConfig, SystemConfig
from milepost.configs.topology import Topology
from milepost.messages.buffer import GroupOpened, GroupsRefused
from milepost.messages.rollout import GroupStored, TrajectoryLost
from milepost.messages.supervisor import EventReported, GuardTripped

OPENED = GroupOpened(group_id="g0000001", prompt_id="p", size=2)


def spec(folder: Path, actor: str = "buffer", **recorder: Any) -> ActorSpec:
    system = SystemConfig(recorder=RecorderConfig(**recorder))
    return ActorSpec(
        actor=actor,
        kind=actor,
        index=0,
        incarnation=0,
        run_id="run",
        run_folder=str(folder),
        addresses={},
        topology=Topology(run=RunConfig(name="r", steps=1), system=system),
        topology_hash="",
    )


def recorder_path(folder: Path) -> Path:
    return folder / FOLDER / "buffer-0.ring"


def opened(folder: Path, actor: str = "buffer", **recorder: Any) -> Recorder:
    recorder_ = Recorder.open(spec(folder, actor, **recorder))
    assert recorder_ is not None
    return recorder_


def record(
    recorder: Recorder,
    event: Event | None,
    now_s: float,
    effects: Sequence[Effect],
    sent: Sequence[tuple[int, int]] = (),
    failure: Exception | None = None,
    **ids: int,
) -> None:
    """One call, written down at once; `sent` has ids and digests of the first effects."""
    done = [ordered(effect) for effect in effects]
    for index, ((effect, *_), one) in enumerate(zip(done, sent, strict=False)):  # type: ignore[misc]
        done[index] = (effect, *one)
    told = Told(event, **ids)
    if recorder.keeps_contents:
        recorder.write_whole((told, now_s, now_s, done, failure), effects)
    else:
        recorder.waiting.append((lasting(told), now_s, now_s, done, failure))
        recorder.write()


def lines_of(folder: Path, actor: str = "buffer") -> list[Line]:
    (found,) = read_recordings(folder / FOLDER, actor)
    return found.lines


def test_calls_wait_and_become_lines_together(tmp_path: Path) -> None:
    """Until they are written they are nowhere; a copy of the ring, and the end, leave none out."""
    recorder = opened(tmp_path)
    call: Call = (Told(Received("a", OPENED), 7, 5, 9), 1.0, 1.5, [], None)
    recorder.waiting.extend([call, call])
    assert read_recording(recorder_path(tmp_path)).lines == []
    assert recorder.statistics()["lines"] == 2
    recorder.write()
    recorder.write()
    assert len(lines_of(tmp_path)) == 2
    recorder.waiting.append(call)
    assert len(read_lines(*read_image(recorder.image()))) == 3
    recorder.waiting.append(call)
    recorder.close()
    lines = read_recording(recorder_path(tmp_path)).lines
    assert [line.number for line in lines] == [0, 1, 2, 3]
    assert {(line.wall_s, line.message_id, line.cause, line.digest) for line in lines} == {
        (1.5, 7, 5, 9)
    }


def test_a_line_says_what_was_told_and_what_was_ordered(tmp_path: Path) -> None:
    recorder = opened(tmp_path)
    request = Request("trainer-0", 7)
    effects: list[Effect] = [
        Tell("rollout", GroupStored(group_id="g0000001", num_tokens=5), key="stored", confirm=True),
        Ask("session-0", OPENED, "ask", 3.0),
        Reply(request, OPENED),
        Wake("later", 12.5),
        Work("keep/g0000001"),
        Fail("over"),
    ]
    record(recorder, None, 1.0, [], ())
    event = Received("rollout", OPENED, request)
    sent, why = ((11, 1), (12, 2), (13, 3)), ActorFailed("x")
    record(recorder, event, 2.0, effects, sent, message_id=7, cause=5, digest=9, failure=why)
    first, second = lines_of(tmp_path)
    assert (first.kind, first.number, first.decisions) == ("start", 0, [])
    assert (second.kind, second.source, second.type) == ("received", "rollout", "GroupOpened")
    assert (second.message_id, second.cause, second.wants_reply) == (7, 5, True)
    assert [second.digest, *(each.digest for each in second.decisions)] == [9, 1, 2, 3, 0, 0, 0]
    assert second.facts == {"group_id": "g0000001", "prompt_id": "p", "size": 2}
    assert second.error == "ActorFailed: x"
    told = [(each.kind, each.to, each.type, each.key, each.message_id) for each in second.decisions]
    assert told == [
        ("tell", "rollout", "GroupStored", "stored", 11),
        ("ask", "session-0", "GroupOpened", "ask", 12),
        ("reply", "trainer-0", "GroupOpened", "", 13),
        ("wake", "", "", "later", 0),
        ("work", "", "Work", "keep/g0000001", 0),
        ("fail", "over", "", "", 0),
    ]
    assert [each.at for each in second.decisions] == [None, 3.0, None, 12.5, None, None]
    recorder.close()


def test_a_line_that_is_too_long_says_so_instead(tmp_path: Path) -> None:
    recorder = opened(tmp_path, ring_bytes=1 << 16)
    many = [Tell("x", TrajectoryLost(trajectory_id="t" * 100, attempt=0, cause="c" * 100))] * 200
    record(recorder, Received("a", OPENED), 0.0, many, ())
    (line,) = lines_of(tmp_path)
    assert "the line had" in line.error
    assert line.decisions == []
    record(recorder, None, 0.0, [Wake("x", 1.0)] * 300, ())
    assert lines_of(tmp_path)[1].decisions[-1].to == "44 further effects are not in this line"


def test_a_recorder_that_is_turned_off_leaves_no_file(tmp_path: Path) -> None:
    assert Recorder.open(spec(tmp_path, enabled=False)) is None
    assert not (tmp_path / FOLDER).exists()


def test_a_resumed_run_keeps_the_recording_of_its_earlier_life(tmp_path: Path) -> None:
    """Who resumes after a crash still wants to know what led to it."""
    for cause in ("first", "second"):
        recorder = opened(tmp_path)
        record(
            recorder,
            Received("rollout", GroupOpened(group_id=cause, prompt_id="", size=1)),
            0,
            [],
            (),
        )
        recorder.close()
    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == ["buffer-0.earlier.ring", "buffer-0.ring"]
    earlier = read_recording(tmp_path / FOLDER / "buffer-0.earlier.ring")
    assert earlier.lines[0].facts["group_id"] == "first"


def test_pins_keep_what_the_ring_overwrites_and_are_few(tmp_path: Path) -> None:
    recorder = opened(tmp_path, ring_bytes=1 << 16, pins_max=2)
    for number in range(450):
        record(recorder, Received("rollout", OPENED), float(number), [], ())
    recorder.pin("looked at", recorder.image())
    for number in range(450, 900):
        record(recorder, Received("rollout", OPENED), float(number), [], ())
    path = recorder.pin("once more", recorder.image())
    assert path.endswith("buffer-0.run.pin-1.zst")
    with pytest.raises(PinsFull, match="has 2 pins"):
        recorder.pin("too often", recorder.image())
    (found,) = read_recordings(tmp_path / FOLDER)
    numbers = [line.number for line in found.lines]
    assert numbers == list(range(numbers[0], 900)), "ring and pins together"
    assert len(numbers) > len(read_recording(tmp_path / FOLDER / "buffer-0.ring").lines)
    assert found.pins == {
        "buffer-0.run.pin-0.zst": "looked at",
        "buffer-0.run.pin-1.zst": "once more",
    }


def test_two_threads_never_write_one_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An anomaly and a request may pin at once: one of the two files would be lost."""
    recorder = opened(tmp_path)
    held: list[bool] = []

    def write(ring: Path, *_: Any) -> Path:
        other = threading.Thread(target=lambda: held.append(not lock.acquire(blocking=False)))
        other.start()
        other.join(60.0)
        return ring

    lock = recorder._pinning
    monkeypatch.setattr("milepost.actors.recorder.recorder.write_pin", write)
    recorder.pin("looked at", b"")
    assert held == [True]
    recorder.close()


def test_the_rings_of_a_run_that_failed_are_pinned_after_its_end(tmp_path: Path) -> None:
    """Whoever resumes it twice still has what led to the first failure."""
    folder = tmp_path / FOLDER
    for actor in ("buffer", "rollout"):
        recorder = opened(tmp_path, actor)
        record(recorder, None, 0.0, [], ())
        recorder.close()
    opened(tmp_path, "buffer").close()
    assert list(pin_rings(folder, "run", "it failed", 1)) == []
    names = sorted(path.name for path in folder.glob("*.zst"))
    assert names == ["buffer-0.run.pin-0.zst", "rollout-0.run.pin-0.zst"]
    assert read_recording(folder / names[1]).pins == {names[1]: "it failed"}
    opened(tmp_path, "rollout").close()
    assert list(pin_rings(folder, "run", "it failed again", 2)) == []
    assert read_recording(folder / names[1]).pins == {names[1]: "it failed"}


def test_pins_of_an_earlier_start_take_no_place_of_those_of_a_resumed_run(tmp_path: Path) -> None:
    """It began with incarnation 0 and without a pin left, and said so nowhere."""
    first = opened(tmp_path, pins_max=1)
    first.pin("refused at the door", first.image())
    first.close()
    opened(tmp_path, "engine-0").close()
    given = replace(spec(tmp_path, pins_max=1), run_id="second")
    resumed = Recorder.open(given)
    assert resumed is not None
    resumed.close()
    assert list(pin_rings(tmp_path / FOLDER, "second", "it failed", 1)) == []
    pins = {each.run_id: each.pins for each in read_recordings(tmp_path / FOLDER, "buffer")}
    assert pins == {
        "run": {"buffer-0.run.pin-0.zst": "refused at the door"},
        "second": {"buffer-0.second.pin-0.zst": "it failed"},
    }
    (engine,) = read_recordings(tmp_path / FOLDER, "engine-0")
    assert engine.pins == {}, "it is of the first start, and did not fail"


def test_a_pin_that_is_not_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever looks for it would think that nothing had happened."""
    recorder = opened(tmp_path, pins_max=1)
    for reason in ("guard a: first", "guard b: second"):
        _tell(recorder, reason, recorder.image())
    told = capsys.readouterr().err
    assert "pins_max allows no more; it was about: guard b: second" in told
    recorder.close()
    (problem,) = pin_rings(tmp_path / FOLDER, "run", "it failed", 1)
    assert "buffer-0.ring has 1 pins" in problem


def test_a_file_of_somebody_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "x-0.ring").write_bytes(b"nonsense")
    with pytest.raises(RingDamaged, match=r"x-0\.ring: 8 bytes without the mark"):
        read_recordings(tmp_path)


def test_the_story_of_a_failure_tells_of_the_group_it_names_over_all_actors(tmp_path: Path) -> None:
    rollout, buffer = opened(tmp_path, "rollout"), opened(tmp_path, "buffer")
    other = GroupOpened(group_id="g0000002", prompt_id="q", size=2)
    record(rollout, Received("buffer", other), 0.0, [Tell("buffer", OPENED)], ((5, 0),))
    record(buffer, Received("rollout", OPENED), 0.0, [], (), message_id=5)
    record(buffer, Received("rollout", other), 0.0, [], ())
    told = story(tmp_path / FOLDER, "run", "buffer", "AssertionError: group g0000001 is twice here")
    head, first, second = told.splitlines()
    assert head == "recorded about g0000001 (2 of 2 lines):"
    assert first.startswith("  rollout #0")
    assert "tell buffer GroupOpened (group_id g0000001" in first
    assert second.startswith("  buffer #0")


def test_the_story_of_a_failure_without_names_is_what_came_last(tmp_path: Path) -> None:
    recorder = opened(tmp_path)
    for _ in range(30):
        record(recorder, WorkDone("work", None), 0.0, [], ())
    told = story(tmp_path / FOLDER, "run", "buffer", "ZeroDivisionError")
    assert told.splitlines()[0] == f"last lines of buffer ({LINES_MAX} of 30 lines):"


def test_refusals_at_the_door_and_guards_are_anomalies() -> None:
    refused = GroupsRefused(step=1, group_ids=("g1",), reasons=("prefix hash differs",))
    report = EventReported(source="trainer-0", kind="episode_failed", text="as episodes do")
    guard = GuardTripped(actor="trainer-0", guard="not_finite", reason="loss is NaN")
    assert anomaly_in(report) == anomaly_in(OPENED) == ""
    assert anomaly_in(refused) == "refused at the door: g1: prefix hash differs"
    assert anomaly_in(guard) == "guard not_finite: loss is NaN"


def test_what_no_message_may_hold_does_not_stop_the_recorder(tmp_path: Path) -> None:
    """The bus refuses it by name; the recorder says that it cannot write it."""
    recorder = opened(tmp_path)
    large = GroupOpened(group_id="g1", prompt_id="", size=1 << 70)
    record(recorder, Received("a", large), 0.0, [], ())
    assert "cannot be written" in lines_of(tmp_path)[0].error


def test_what_is_no_text_does_not_stop_the_recorder(tmp_path: Path) -> None:
    """The name of a file may be any bytes, and stand in the error of a work."""
    recorder = opened(tmp_path)
    for event in (Taken("a"), WorkDone("read", None, "no file \udcff"), Taken("b")):
        recorder.waiting.append((Told(event), 0.0, 0.0, [], None))
    recorder.write()
    lines = lines_of(tmp_path)
    assert ["cannot be written" in line.error for line in lines] == [False, True, False]
    assert [line.key for line in lines] == ["a", "read", "b"], "nor the lines beside it"


def test_bad_news_is_told_once_even_if_the_ring_was_copied_before(tmp_path: Path) -> None:
    """Somebody asks for a recording just then: the anomaly in it must be pinned all the same."""
    recorder = opened(tmp_path)
    guard = GuardTripped(actor="trainer-0", guard="not_finite", reason="loss is NaN")
    told = Tell("supervisor", guard)
    recorder.waiting.append((Told(Taken("a")), 0.0, 0.0, [(told, 1, 1)], None))
    recorder.image()
    assert recorder.write() == ["guard not_finite: loss is NaN"]
    assert recorder.write() == []
    recorder.close()
