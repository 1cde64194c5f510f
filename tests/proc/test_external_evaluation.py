"""Real processes that measure checkpoints: their files stay, their deadline holds."""

from __future__ import annotations

import os
import select
import shutil
from pathlib import Path
from typing import Any

import pytest

from milepost.actors.evaluator.examiner import Examiner
from milepost.actors.evaluator.external_worker import Measured
from milepost.actors.evaluator.works import KeepCheckpoint, MeasureCheckpoint, RemoveCheckpoint

pytestmark = pytest.mark.timeout(120)
DEADLINE_S = 60.0


def examiner(folder: Path, name: str, **options: Any) -> Examiner:
    return Examiner(f"proc.evaluations:{name}", options, folder / "evaluation")


async def measure(made: Examiner, checkpoint: Path, deadline_s: float = DEADLINE_S) -> Measured:
    work = MeasureCheckpoint("measure/3", 3, str(checkpoint), deadline_s)
    return await made.measure(work)


def has_ended(pid: int) -> bool:
    """Wait for the end of a process that is no child of ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DEADLINE_S)[0])
    finally:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' folder is on the path of every process."""
    tests = str(Path(__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", tests, prepend=":")


async def test_a_checkpoint_is_measured_as_it_was_when_the_trainer_has_removed_it(
    tmp_path: Path,
) -> None:
    """Training goes on, and keeps only its newest checkpoints."""
    saved = tmp_path / "step_000003"
    (saved / "hf").mkdir(parents=True)
    (saved / "hf" / "model.safetensors").write_bytes(bytes(1000))
    (saved / "hf" / "config.json").write_bytes(b"{}")
    made = examiner(tmp_path, "Counts")
    kept = await made.keep(KeepCheckpoint("keep/3", 3, str(saved)))
    shutil.rmtree(saved)
    work = MeasureCheckpoint("measure/3", 3, kept, DEADLINE_S)
    found = await made.measure(work)
    assert found == Measured(metrics={"files": 2.0, "bytes": 1002.0})
    await made.remove(RemoveCheckpoint("remove/3", 3))
    assert list(made.folder.iterdir()) == [], "the disk is not ours to fill"


async def test_at_the_deadline_the_process_and_all_it_has_started_are_gone(tmp_path: Path) -> None:
    """A server that outlives its evaluation keeps a GPU for ever.

    The deadline runs out only after the class has noted what it started.
    """
    note = tmp_path / "note"
    made = examiner(tmp_path, "Hangs", note=str(note))
    deadline_s = 3.0
    while True:
        found = await measure(made, tmp_path, deadline_s)
        assert found.skipped == "deadline"
        if note.is_file() and note.read_text():
            break
        deadline_s *= 2  # a busy machine had not even begun
    assert has_ended(int(note.read_text()))


async def test_a_process_that_is_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    found = await measure(examiner(tmp_path, "Dies"), tmp_path)
    assert found.skipped == "crashed"
    assert "SIGKILL" in found.text
