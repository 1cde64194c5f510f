"""Which weights a replay of training begins with, and when there is nothing to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from unit.recorder.test_recorder import record, spec

from milepost.actors.effects import Effect, Tell, WorkDone
from milepost.actors.recorder.reading import read_recordings
from milepost.actors.recorder.recorder import FOLDER, Recorder
from milepost.actors.recorder.replay.tape import ReplayRefused, Tape, Until
from milepost.actors.recorder.replay.training import beginning, replay_training, trained_steps
from milepost.actors.trainer.works import Exported, Saved, StepOutcome
from milepost.configs.actors import TrainerConfig
from milepost.configs.topology import ActorsConfig
from milepost.messages.buffer import CheckpointSaved
from milepost.messages.supervisor import StepRecorded

SAVED = (2, 4)


def told(step: int) -> Effect:
    return Tell("supervisor", StepRecorded(source="trainer-0", step=step, metrics={}))


def tape_until(folder: Path, until: Until) -> Tape:
    """A trainer of four steps that exports each version and saves at the end, as one does."""
    given = spec(folder, "trainer-0", payloads=True)
    recorder = Recorder.open(given)
    assert recorder is not None
    outcome = StepOutcome(metrics={"train/loss": 0.5}, num_tokens=1, train_s=0.1, spread=True)
    exported: Any = Exported(None, (), 0.1)
    record(recorder, WorkDone("export/0", exported), 0.0, [told(0)])
    for step in range(4):
        record(recorder, WorkDone(f"train/{step}", outcome), 0.0, [told(step)])
        record(recorder, WorkDone(f"export/{step + 1}", exported), 0.0, [told(step + 1)])
    saved = Tell("buffer", CheckpointSaved(step=4, folder="f"))
    record(recorder, WorkDone("save/4", Saved(4, "f", 0.1)), 0.0, [saved, told(4)])
    recorder.close()
    (found,) = read_recordings(folder / FOLDER)
    return Tape(given, until.cut(found.lines), {}, recorded=found.lines)


@pytest.mark.parametrize(
    ("until", "begin"), [("", 0), ("step=1", 0), ("step=2", 2), ("step=3", 2), ("step=4", 2)]
)
def test_it_begins_at_or_before_the_last_batch(tmp_path: Path, until: str, begin: int) -> None:
    """Step 4 has figures and a checkpoint, and no batch: nothing was compared, and all was well."""
    tape = tape_until(tmp_path, Until.of(until))
    assert beginning(tape, Until.of(until), SAVED) == begin
    assert trained_steps(tape.recorded) == [0, 1, 2, 3]
    assert max(trained_steps(tape.lines)) >= begin


def test_a_replay_that_would_compare_no_step_is_refused(tmp_path: Path) -> None:
    until = Until.of("line=0")
    tape = tape_until(tmp_path, until)
    actors = ActorsConfig(trainer=TrainerConfig(lr=1e-3))
    tape.spec = replace(tape.spec, topology=replace(tape.spec.topology, actors=actors))
    with pytest.raises(ReplayRefused, match="compared: steps with figures are 0 to 3"):
        replay_training(tape, until)
    tape.recorded = tape.lines
    with pytest.raises(ReplayRefused, match="steps with figures are none"):
        replay_training(tape, until)
