"""Real processes: every way in which a run ends, and that nothing is left of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from proc.runs import DEADLINE_S, custom, leftovers, running, topology, wait_gone

from milepost.supervisor.cleanup.processes import identity_of

TEN = custom("idle", "idle", replicas=10)
TRAINER = custom("worker", "worker", "steps = 3", significant=True)
ENDLESS = custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)


def test_a_run_is_done_when_its_work_is(tmp_path: Path) -> None:
    with running(tmp_path, topology(TRAINER + custom("idle", "idle", replicas=2))) as run:
        assert run.end() == 0, run.text
        assert "end done" in run.text
        summary = run.summary
        assert (summary["status"], summary["exit_code"], summary["cause"]) == ("done", 0, None)
        assert summary["steps_done"] == 3
        assert summary["actors"] == {"worker-0": {"steps": 3}}
        assert [line["step"] for line in run.lines("metrics.jsonl")] == [1, 2, 3]
        assert "step 2  rollout/solved 0.2  train/loss 0.5" in run.text
        assert (run.folder / "topology.toml").exists()
        assert run.json("versions.json")["versions"]["python"]
        assert list((run.folder / "tensorboard").iterdir())
        assert leftovers(run.run_id, run.sockets) == []


def test_ctrl_c_once_drains_saves_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, topology(ENDLESS + custom("idle", "idle"))) as run:
        run.until("step 3")
        run.signal(signal.SIGINT)
        assert run.end() == 1, run.text
        assert run.summary["status"] == "stopped"
        assert run.summary["cause"]["text"] == "SIGINT"
        saved = int((run.folder / "saved").read_text())
        assert saved >= 3
        assert leftovers(run.run_id, run.sockets) == []


def test_sigterm_is_as_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path, topology(ENDLESS)) as run:
        run.until("step 1")
        run.signal(signal.SIGTERM)
        assert run.end() == 1, run.text
        assert (run.folder / "saved").exists()


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    """The deaf one holds the stop up; a second Ctrl-C ends the patience.

    A trainer that was saving then has no time to take away the half of its checkpoint.
    """
    text = topology(ENDLESS + custom("deaf", "deaf")).replace("stop_s = 2.0", "stop_s = 60.0")
    with running(tmp_path, text) as run:
        run.until("step 1")
        run.signal(signal.SIGINT)
        run.until("stop_requested: SIGINT")
        (run.folder / "checkpoints" / ".step_000001.partial").mkdir(parents=True)
        run.signal(signal.SIGINT)
        assert run.end(10) == 1, run.text
        assert run.summary["status"] == "stopped"
        assert list((run.folder / "checkpoints").iterdir()) == []
        assert leftovers(run.run_id, run.sockets) == []


def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(tmp_path: Path) -> None:
    """Ctrl-S in a terminal, a pager that waits for a key: writing to it returns when it goes on."""
    text = topology(custom("worker", "worker", "steps = 8000\nstep_s = 0.0", significant=True))
    with running(tmp_path, text) as run:
        run.begun()
        actors = [child for name, child in run.children().items() if name != "janitor"]
        assert actors
        assert wait_gone(actors, DEADLINE_S) == []
        assert run.end() == 0, run.text
        assert len(run.lines("metrics.jsonl")) == 8000
        assert "steps and events were not shown: nobody read what was printed" in run.text
        assert "end done" in run.text


def test_an_actor_that_does_not_stop_is_killed_after_its_deadline(tmp_path: Path) -> None:
    with running(tmp_path, topology(TRAINER + custom("deaf", "deaf"))) as run:
        assert run.end() == 0, run.text
        assert "deaf-0 killed: deaf-0 did not stop within 2 s of SIGTERM" in run.text


def test_a_child_that_dies_at_the_start_ends_the_wait_at_once(tmp_path: Path) -> None:
    """With its name, its exit code and the end of its log: no deadline is waited out."""
    with running(tmp_path, topology(custom("broken", "broken") + TEN)) as run:
        assert run.end(20) == 1, run.text
        cause = run.summary["cause"]
        assert (cause["actor"], cause["exit_code"], cause["signal"]) == ("broken-0", 1, "")
        assert cause["log_tail"][-1] == "ImportError: no module named flux_capacitor"
        assert cause["text"].endswith("ImportError: no module named flux_capacitor")
        assert leftovers(run.run_id, run.sockets) == []


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("fail", "exited with code 1: out of luck"),
        ("raise", "ValueError: out of bounds"),
        ("leave", "exited with code 0, although nobody had told it to stop"),
        ("signal", "was killed by SIGSEGV"),
    ],
)
def test_the_first_cause_is_named(tmp_path: Path, what: str, words: str) -> None:
    actors = ENDLESS + custom("later", "later", f'what = "{what}"')
    with running(tmp_path, topology(actors)) as run:
        assert run.end() == 1, run.text
        assert run.summary["status"] == "failed"
        assert run.summary["cause"]["actor"] == "later-0"
        assert words in run.summary["cause"]["text"]
        assert (run.folder / "saved").exists(), "the trainer was healthy and could save"


@pytest.mark.parametrize(("guard", "saves"), [("not_finite", False), ("no_spread", True)])
def test_a_guard_stops_the_run(tmp_path: Path, guard: str, *, saves: bool) -> None:
    actors = ENDLESS + custom("later", "later", f'what = "guard"\nguard = "{guard}"')
    with running(tmp_path, topology(actors)) as run:
        assert run.end() == 1, run.text
        assert run.summary["status"] == "guard"
        assert run.summary["cause"]["text"] == f"guard {guard}: bad"
        assert (run.folder / "saved").exists() is saves


def test_two_runs_of_one_topology_never_meet(tmp_path: Path) -> None:
    text = topology(ENDLESS + custom("idle", "idle"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a", text) as one, running(tmp_path / "b", text) as two:
        one.until("step 2")
        two.until("step 2")
        assert one.sockets != two.sockets
        one.signal(signal.SIGINT)
        assert one.end() == 1
        two.until("step 6")
        two.signal(signal.SIGINT)
        assert two.end() == 1
        assert leftovers(one.run_id, one.sockets) + leftovers(two.run_id, two.sockets) == []


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    text = topology(ENDLESS)
    with running(tmp_path, text) as one:
        one.until("step 1")
        with running(tmp_path, text) as two:
            assert two.end() == 1
            assert "belongs to a run that goes on" in two.text
        one.until("step 4")


def test_actors_and_their_offspring_go_together(tmp_path: Path) -> None:
    """Also the one that left its session, and the sandbox outside."""
    with running(tmp_path, topology(TRAINER + custom("parent", "parent"))) as run:
        assert run.end() == 0, run.text
        assert not (run.folder / "sandbox").exists()
        pids = [int(word) for word in (run.folder / "offspring").read_text().split()]
        assert [pid for pid in pids if identity_of(pid) is not None] == []
