"""A resume reads where a run stands as the only owner of its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology
from milepost.configs.topology import Topology
from milepost.launch.exits import Exit
from milepost.launch.running import Options, how_to_go_on, run_topology
from milepost.supervisor.checkpoints import META, checkpoint_folder
from milepost.supervisor.cleanup.processes import RUN_VARIABLE, Identity, boot_id
from milepost.supervisor.cleanup.registry import Registry, identity_record
from milepost.supervisor.folder import RunFolder

STEPS = 2
SAVED = f'{{"step": {STEPS}, "trained_group_ids": []}}'
LISTENS = """
import socket, sys
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
sys.stdin.read()
"""


def topology(*overrides: str) -> Topology:
    """Nothing is left to train once there is a checkpoint of `STEPS`."""
    steps = (f"run.steps={STEPS}", "actors.evaluator.at_end=false")
    return load_topology("lookup", [*steps, *overrides])


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    """The last checkpoint of a run, which is being replaced."""
    (tmp_path / "topology.toml").write_text(dump_topology(topology()), encoding="utf-8")
    path = tmp_path / "checkpoints" / f".{checkpoint_folder(tmp_path, STEPS).name}.replaced"
    path.mkdir(parents=True)
    (path / META).write_text(SAVED, encoding="utf-8")
    (tmp_path / "summary.json").write_text(
        '{"status": "done", "cause": null, "scores": {"after": null}}', encoding="utf-8"
    )
    return path


def test_a_resume_moves_nothing_in_a_folder_that_somebody_works_in(
    aside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between its two renames a healthy trainer would find the first one undone, and die of it.

    When nobody has the folder any more the checkpoint has its name again before it is looked for;
    and a resume that is refused lets the folder go.
    """
    final = checkpoint_folder(tmp_path, STEPS)
    with closing(RunFolder(tmp_path)):
        assert run_topology(topology(), Options(resume=tmp_path)) is Exit.REFUSED
        assert "belongs to a run that goes on" in capsys.readouterr().out
        assert (aside.exists(), final.exists()) == (True, False)
    for _ in range(2):
        assert run_topology(topology(), Options(resume=tmp_path)) is Exit.REFUSED
        assert f"the run is complete: steps = {STEPS}" in capsys.readouterr().out
        assert (aside.exists(), final.exists()) == (False, True)


def test_a_resume_removes_what_a_former_life_left_half_written(aside: Path, tmp_path: Path) -> None:
    """Whoever cleaned up behind that life may have known nothing of it."""
    partial = aside.with_name(".step_000001.partial")
    partial.mkdir()
    with closing(RunFolder(tmp_path)):
        assert run_topology(topology(), Options(resume=tmp_path)) is Exit.REFUSED
        assert partial.exists()
    assert run_topology(topology(), Options(resume=tmp_path)) is Exit.REFUSED
    assert [path.name for path in partial.parent.iterdir()] == [f"step_{STEPS:06d}"]


def test_a_folder_without_a_run_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_topology(topology(), Options(resume=tmp_path)) is Exit.REFUSED
    assert "nothing to resume: no topology.toml" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_orphan_of_the_run_is_gone_before_its_port_is_looked_at(
    aside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its supervisor was killed; what listens at the door is the run's own session actor."""
    assert aside.exists()
    run_id = f"{os.getpid():016x}"  # others take away what belongs to theirs meanwhile
    orphan = subprocess.Popen(
        [sys.executable, "-c", LISTENS],
        env={**os.environ, RUN_VARIABLE: run_id},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with orphan:
        assert orphan.stdout is not None
        port = int(orphan.stdout.readline())
        RunFolder(tmp_path).close()
        dead = identity_record(Identity(2**22 - 1, 1, boot_id()))
        Registry(tmp_path).append({"kind": "run", "run_id": run_id, "supervisor": dead})
        door = ("actors.session.http={}", f"actors.session.http.port={port}")
        resumed = topology(*door, "run.steps=1")
        assert run_topology(resumed, Options(resume=tmp_path)) is Exit.REFUSED
        told = capsys.readouterr().out
        assert f"steps = 1, but the run to resume has a checkpoint of step {STEPS}" in told
        assert "cannot be listened on" not in told
        assert orphan.wait() == -9


@pytest.mark.parametrize(
    ("status", "without", "with_one"),
    [
        ("done", "", ""),
        ("stopped", "to begin again: ", "to go on from step 2: "),
        (
            "failed",
            "once its cause is repaired, to begin again: ",
            "once its cause is repaired, to go on from step 2: ",
        ),
        (
            "guard",
            "",
            "once its cause is repaired or the guard set otherwise, to go on from step 2: ",
        ),
    ],
)
def test_who_reads_how_a_run_ended_reads_how_it_goes_on(
    tmp_path: Path, status: str, without: str, with_one: str
) -> None:
    """A version that a guard kept is of no use to somebody who is not told of it."""
    command = f"milepost run --resume {tmp_path}"
    assert how_to_go_on(tmp_path, status) == (without and f"{without}{command}")
    final = checkpoint_folder(tmp_path, STEPS)
    final.mkdir(parents=True)
    (final / META).write_text(SAVED, encoding="utf-8")
    assert how_to_go_on(tmp_path, status) == (with_one and f"{with_one}{command}")
