"""A full recording through the same core: the same decisions, or the first other one by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from unit.buffer.kit import Play, row, settings
from unit.recorder.test_recorder import record, spec

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.work import KeepGroup
from milepost.actors.effects import Effect, Event, Received, Reply, Tell
from milepost.actors.recorder.content import content_of, value_of
from milepost.actors.recorder.payloads import read_payloads
from milepost.actors.recorder.reading import read_recordings
from milepost.actors.recorder.recorder import FOLDER, Recorder
from milepost.actors.recorder.replay.cores import make_core
from milepost.actors.recorder.replay.playing import play
from milepost.actors.recorder.replay.tape import ReplayRefused, Tape, Until
from milepost.configs.actors import BufferConfig
from milepost.configs.dump import dump_topology, topology_hash
from milepost.configs.spec import ActorSpec
from milepost.configs.topology import ActorsConfig
from milepost.messages.buffer import Batch, GroupOpened, StepTrained, TrajectoryFinished
from milepost.messages.bulk import Bulk
from milepost.messages.rollout import GroupStored


@dataclass
class Recorded(Play):
    """A buffer whose every event is recorded whole."""

    recorder: Recorder | None = None
    now_s: float = 0.0
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.recorder is not None
        first = Buffer.of(self.given, Fates(), ()).start(0.0)
        record(self.recorder, None, 0.0, first)

    def feed(self, event: Event) -> None:
        assert self.recorder is not None
        self.now_s += 0.25
        effects = self.core.handle(event, self.now_s)
        record(self.recorder, event, self.now_s, effects)
        self.carry_out(effects)


def recorded(folder: Path, *, ring_bytes: int = 1 << 20) -> list[str]:
    """Two steps of a buffer, recorded; names of their groups."""
    recorder = Recorder.open(spec(folder, payloads=True, ring_bytes=ring_bytes))
    assert recorder is not None
    run = Recorded(settings(), recorder=recorder)
    names = [f"g000000{number}" for number in range(4)]
    for name in names:
        run.put(name, rewards=(0.0, 1.0))
    for step in range(2):
        assert isinstance(run.batch(run.request(step)), Batch)
        trained = StepTrained(step=step, version=step + 1, group_ids=tuple(names[2 * step :][:2]))
        run.hear(trained, "trainer-0")
    recorder.close()
    return names


def tape_of(folder: Path) -> Tape:
    (found,) = read_recordings(folder / FOLDER)
    contents = dict(read_payloads(folder / FOLDER / "buffer-0.payloads"))
    return Tape(spec(folder, payloads=True), found.lines, contents)


def fresh() -> Buffer:
    return Buffer.of(settings(), Fates(), ())


def test_the_same_core_decides_the_same(tmp_path: Path) -> None:
    recorded(tmp_path)
    tape = tape_of(tmp_path)
    played = play(tape, fresh())
    assert played.difference is None
    assert played.num_lines == len(tape.lines) > 10
    assert played.num_decisions > 10


class Canary(Buffer):
    """Tells another size of the third group that is stored; nobody would notice for a while."""

    seen = 0

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        return list(self._changed(super().handle(event, now_s)))

    def _changed(self, effects: Iterable[Effect]) -> Iterable[Effect]:
        for effect in effects:
            match effect:
                case Tell(to, GroupStored() as stored):
                    self.seen += 1
                    more = stored.num_tokens + (self.seen == 3)
                    yield Tell(to, GroupStored(group_id=stored.group_id, num_tokens=more))
                case _:
                    yield effect


def test_a_changed_decision_is_found_and_named(tmp_path: Path) -> None:
    names = recorded(tmp_path)
    played = play(tape_of(tmp_path), Canary.of(settings(), Fates(), ()))
    assert played.difference is not None
    first, then, now, where = played.difference.words()
    assert first.startswith(f"line {played.num_lines} at ")
    assert f"group_id {names[2]}, num_tokens" in then
    assert then.startswith("  recorded tell rollout GroupStored")
    assert now.startswith("  replayed tell rollout GroupStored")
    assert where.startswith("  they differ in ")
    assert "facts, content" in where


class Silent(Buffer):
    """Answers no question."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        return [each for each in super().handle(event, now_s) if not isinstance(each, Reply)]


def test_a_decision_that_is_missing_is_found_and_named(tmp_path: Path) -> None:
    recorded(tmp_path)
    difference = play(tape_of(tmp_path), Silent.of(settings(), Fates(), ())).difference
    assert difference is not None
    assert "recorded reply trainer-0 Batch" in "\n".join(difference.words())
    assert isinstance(tape_of(tmp_path).event(difference.line), Received)


def test_one_reward_that_is_not_the_recorded_one_is_found(tmp_path: Path) -> None:
    """No name and no count differs, only a number inside of a batch."""
    recorded(tmp_path)
    tape = tape_of(tmp_path)
    line = next(each for each in tape.lines if each.type == "TrajectoryFinished")
    finished = value_of(tape.contents[line.digest])
    other = replace(finished, trajectory=replace(finished.trajectory, reward=0.5))
    tape.contents[line.digest] = content_of(other)
    difference = play(tape, fresh()).difference
    assert difference is not None
    assert list(difference.words())[-1].startswith("  they differ in content")


def test_until_cuts_after_the_last_line_about_a_step(tmp_path: Path) -> None:
    recorded(tmp_path)
    lines = tape_of(tmp_path).lines
    cut = Until.of("step=0").cut(lines)
    assert cut[-1].type == "StepTrained" or any("step" in each.facts for each in cut[-1].decisions)
    assert len(cut) < len(lines)
    assert Until.of("").cut(lines) == lines
    assert len(Until.of("line=4").cut(lines)) == 5
    with pytest.raises(ReplayRefused, match="no line speaks of step 12, there is 0 to 1"):
        Until.of("step=12").cut(lines)
    with pytest.raises(ReplayRefused, match="write step=N, version=N or line=N"):
        Until.of("noon").cut(lines)


def test_a_content_that_was_not_kept_refuses_the_line_by_name(tmp_path: Path) -> None:
    recorded(tmp_path)
    tape = tape_of(tmp_path)
    missing = next(line for line in tape.lines if line.type == "StepTrained")
    del tape.contents[missing.digest]
    with pytest.raises(ReplayRefused, match=f"--until line={missing.number - 1} goes as far"):
        play(tape, fresh())


@pytest.mark.parametrize(
    ("recorder", "why"),
    [
        ({}, "was recorded without contents: set system.recorder.payloads = true"),
        ({"payloads": True, "ring_bytes": 1 << 16}, "raise system.recorder.ring_bytes = 65536"),
    ],
)
def test_a_recording_that_does_not_reach_back_is_refused(
    tmp_path: Path, recorder: dict[str, Any], why: str
) -> None:
    given = spec(tmp_path, **recorder)
    (tmp_path / "topology.toml").write_text(dump_topology(given.topology))
    opened = Recorder.open(_hashed(given))
    assert opened is not None
    for number in range(1000):
        record(opened, Received("a", GroupStored(group_id="g1", num_tokens=number)), 0.0, [])
    opened.close()
    with pytest.raises(ReplayRefused, match=why):
        Tape.read(tmp_path, "buffer", Until())
    with pytest.raises(ReplayRefused, match="nothing was recorded of 'buffer-1', there are buffer"):
        Tape.read(tmp_path, "buffer-1", Until())


def test_another_topology_than_the_one_that_ran_is_refused(tmp_path: Path) -> None:
    given = _hashed(spec(tmp_path, payloads=True))
    opened = Recorder.open(given)
    assert opened is not None
    opened.close()
    other = spec(tmp_path, payloads=True, pins_max=1).topology
    (tmp_path / "topology.toml").write_text(dump_topology(other))
    with pytest.raises(ReplayRefused, match="is not the topology that buffer ran with"):
        Tape.read(tmp_path, "buffer", Until())


def test_actors_whose_first_state_is_not_recorded_are_refused(tmp_path: Path) -> None:
    engine = spec(tmp_path, "engine")
    with pytest.raises(ReplayRefused, match="rests on its backend"):
        make_core(engine)
    resumed = _hashed(spec(tmp_path), resume_step=3)
    with pytest.raises(ReplayRefused, match="only the first life of a fresh run"):
        make_core(resumed)
    again = replace(spec(tmp_path, "evaluator"), incarnation=1)
    with pytest.raises(ReplayRefused, match="this life of evaluator began with what it read"):
        make_core(again)


def _hashed(given: ActorSpec, **changed: Any) -> ActorSpec:
    return replace(given, topology_hash=topology_hash(given.topology), **changed)


def test_a_replayed_buffer_sees_rows_as_the_core_behind_an_archive_does(tmp_path: Path) -> None:
    """Conversations arrive and are recorded; the archive alone has them, the journal has not."""
    plain = spec(tmp_path, payloads=True)
    topology = replace(plain.topology, actors=ActorsConfig(buffer=BufferConfig()))
    core = make_core(replace(plain, topology=topology))
    text = Bulk("uint8", (2,), b"{}")
    effects = core.handle(
        Received("rollout", GroupOpened(group_id="g", prompt_id="p", size=2)), 0.0
    )
    for member in range(2):
        told = replace(row(f"g.{member}", 0, reward=float(member)), conversation=text)
        effects += core.handle(Received("session-0", TrajectoryFinished(trajectory=told)), 1.0)
    (kept,) = (effect for effect in effects if isinstance(effect, KeepGroup))
    assert [each.conversation for each in kept.group.trajectories] == [None, None]
