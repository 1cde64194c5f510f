"""Real processes, killed: after it nothing is left, and who was first is named."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from proc.runs import Running, custom, leftovers, running, topology, wait_gone
from proc.test_supervisor_attach import milepost

from milepost.supervisor.cleanup.compaction import compact
from milepost.supervisor.cleanup.listeners import holders_of, listening
from milepost.supervisor.cleanup.processes import Identity, identity_of
from milepost.supervisor.cleanup.reaper import StillRunning, reap
from milepost.supervisor.cleanup.registry import Registry, identity_record, read_registry

THREE = (
    custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)
    + custom("idle", "idle")
    + custom("parent", "parent")
)
PERMANENT = 'policy = "permanent"\nbackoff_s = 0.05\nrestarts_max = 2'


@pytest.mark.parametrize("victim", ["worker-0", "idle-0", "parent-0"])
def test_kill_9_of_any_child_ends_the_run_and_leaves_nothing(tmp_path: Path, victim: str) -> None:
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 2")
        run.children()[victim].send_signal(signal.SIGKILL)
        assert run.end(10) == 1, run.text
        cause = run.summary["cause"]
        assert (cause["actor"], cause["signal"]) == (victim, "SIGKILL")
        assert leftovers(run.run_id, run.sockets) == []


def test_kill_9_of_the_supervisor_leaves_nothing_either(tmp_path: Path) -> None:
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 2")
        sockets, run_id = run.sockets, run.run_id
        processes = list(run.children().values())
        assert len(processes) == 4
        run.signal(signal.SIGKILL)
        assert wait_gone(processes, 10) == []
        assert leftovers(run_id, sockets) == []
        assert run.summary["status"] == "killed"
        steps = [line["step"] for line in run.lines("metrics.jsonl")]
        assert steps == list(range(1, len(steps) + 1))
        assert (run.summary["steps_done"], run.summary["name"]) == (steps[-1], "trivial")
        assert run.summary["seconds"]["total"] > run.summary["seconds"]["running"] > 0
        assert not (run.folder / "sandbox").exists()


def test_reap_cleans_when_supervisor_and_janitor_are_killed(tmp_path: Path) -> None:
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 2")
        sockets, run_id = run.sockets, run.run_id
        children = run.children()
        with pytest.raises(StillRunning, match="is run by process"):
            reap(run.folder)
        children["janitor"].send_signal(signal.SIGSTOP)
        run.signal(signal.SIGKILL)
        children["janitor"].send_signal(signal.SIGKILL)
        run.end()
        assert sockets.exists(), "nobody was left to clean"
        reaped = reap(run.folder)
        assert reaped.problems == []
        assert reaped.folders == [str(sockets)]
        assert leftovers(run_id, sockets) == []
        assert reap(run.folder).folders == [], "the second time there is nothing to do"


def test_a_port_of_an_actor_s_own_is_shown_and_taken_away_from_whoever_holds_it(
    tmp_path: Path,
) -> None:
    """A process that got away with it carries no mark of the run, and is found by the socket."""
    with running(tmp_path, topology(THREE + custom("opening", "opening"))) as run:
        run.until("step 20")
        (port,) = read_registry(run.folder).listeners
        assert (port.actor, listening([port])) == ("opening-0", [port])
        shown = milepost("ps", "--run", str(run.folder)).stdout
        assert f"opening-0 listens at {port.endpoint}" in shown
        children = run.children()
        children["janitor"].send_signal(signal.SIGSTOP)
        run.signal(signal.SIGKILL)
        children["janitor"].send_signal(signal.SIGKILL)
        run.end()
        holders = list(holders_of([port]))
        assert holders, "somebody got away with it"
        reaped = reap(run.folder)
        assert (reaped.problems, reaped.ports) == ([], [port.endpoint])
        assert not any(each.alive for each in holders)
        assert listening([port]) == []


def test_the_janitor_reads_the_newest_registry_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    """It was written anew since the janitor began, and then removed with all else."""
    (tmp_path / "run" / ".milepost").mkdir(parents=True)
    sockets = tmp_path / "milepost-x"
    sockets.mkdir()
    registry = Registry(tmp_path / "run")
    with subprocess.Popen(["true"]) as gone:
        dead = identity_of(gone.pid) or Identity(2**22 - 1, 1, "")
    registry.append({"kind": "run", "run_id": "00ff00ff", "supervisor": identity_record(dead)})
    words = ["-P", "-m", "milepost.supervisor.cleanup.janitor", str(tmp_path / "run")]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE) as janitor:
        assert janitor.stdin is not None
        until_it_holds(janitor.pid, registry.path)
        compact(registry.path)
        registry.append({"kind": "folder", "path": str(sockets)})
        janitor.stdin.write(b".")
        janitor.stdin.flush()
        until_it_holds(janitor.pid, registry.path)
        shutil.rmtree(tmp_path / "run")
        janitor.stdin.close()
        assert janitor.wait(20) == 0
    assert not sockets.exists()


def until_it_holds(pid: int, path: Path) -> None:
    """The process has this very file open, no namesake that was there before."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            if any(each.samefile(path) for each in Path(f"/proc/{pid}/fd").iterdir()):
                return
    pytest.fail(f"process {pid} did not open {path} within 20 s")


def test_a_killed_janitor_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 2")
        first = run.children()["janitor"]
        first.send_signal(signal.SIGKILL)
        assert wait_gone([first]) == []
        run.until("step 30")
        sockets, run_id = run.sockets, run.run_id
        processes = list(run.children().values())
        assert len(processes) == 4
        run.signal(signal.SIGKILL)
        assert wait_gone(processes, 10) == []
        assert leftovers(run_id, sockets) == []


def test_a_run_in_the_folder_of_a_killed_one_cleans_up_first(tmp_path: Path) -> None:
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 2")
        old = run.sockets
        run.children()["janitor"].send_signal(signal.SIGSTOP)
        janitor = run.children()["janitor"]
        run.signal(signal.SIGKILL)
        janitor.send_signal(signal.SIGKILL)
        run.end()
        (run.folder / "sandbox").rmdir()
        with running(tmp_path, topology(THREE), "3") as again:
            again.until("step 2")
            assert not old.exists()
            assert again.run_facts["resumed_from"] == 3
            assert not (again.folder / "summary.json").exists(), "this life has not ended"


def test_a_stopped_worker_is_noticed_by_name(tmp_path: Path) -> None:
    """SIGSTOP: the process is there, its sockets are open, nothing moves."""
    with running(tmp_path, topology(THREE)) as run:
        run.until("step 28")
        run.children()["idle-0"].send_signal(signal.SIGSTOP)
        assert run.end(20) == 1, run.text
        cause = run.summary["cause"]
        assert cause["actor"] == "idle-0"
        assert "silent for 4.0 s (deadline 4 s)" in cause["text"]
        assert "waits for nothing in particular" in cause["text"]


def test_a_worker_whose_loop_is_stuck_is_noticed_by_name(tmp_path: Path) -> None:
    actors = THREE + custom("later", "later", 'what = "stuck"')
    with running(tmp_path, topology(actors)) as run:
        assert run.end(20) == 1, run.text
        assert run.summary["cause"]["actor"] == "later-0"


def restarts(run: Running) -> list[str]:
    return [
        f"{event['source']} {event['values']['incarnation']}"
        for event in run.lines("events.jsonl")
        if event["kind"] == "restarted"
    ]


def test_a_permanent_actor_comes_back_and_the_others_hear_of_it(tmp_path: Path) -> None:
    actors = THREE + custom("later", "later", 'what = "raise"', restart=PERMANENT)
    with running(tmp_path, topology(actors)) as run:
        run.until("idle-0 heard: idle-0 heard of later-0 1")
        run.until("step 30")
        assert run.children()["later-0"].is_running()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert restarts(run) == ["later-0 1"]
        assert run.summary["restarts"] == {"later-0": 1}


def test_an_actor_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    options = 'what = "raise"\nalways = true'
    actors = THREE + custom("later", "later", options, restart=PERMANENT)
    with running(tmp_path, topology(actors)) as run:
        assert run.end() == 1, run.text
        assert restarts(run) == ["later-0 1", "later-0 2"]
        assert run.summary["cause"]["text"].endswith(
            "(restarted 2 times within 60 s, restarts_max is 2)"
        )


def test_a_transient_actor_may_leave(tmp_path: Path) -> None:
    actors = THREE + custom("later", "later", 'what = "leave"', restart='policy = "transient"')
    with running(tmp_path, topology(actors)) as run:
        run.until("later-0 ended")
        run.until("step 20")
        assert "later-0" not in run.children()


def test_the_janitor_waits_until_the_supervisor_is_really_gone(tmp_path: Path) -> None:
    """Its pipe ends while the kernel still takes the supervisor apart."""
    (tmp_path / ".milepost").mkdir()
    sockets = tmp_path / "milepost-x"
    sockets.mkdir()
    with subprocess.Popen(["sleep", "60"]) as dying:
        identity = identity_of(dying.pid)
        assert identity is not None
        Registry(tmp_path).append(
            {"kind": "run", "run_id": "00ff00ff", "supervisor": identity_record(identity)},
            {"kind": "folder", "path": str(sockets)},
        )
        words = ["-P", "-m", "milepost.supervisor.cleanup.janitor", str(tmp_path)]
        with subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as janitor:
            assert janitor.stdin is not None
            janitor.stdin.close()
            with pytest.raises(subprocess.TimeoutExpired):
                janitor.wait(1.0)
            assert sockets.exists()
            dying.kill()
            dying.wait()
            assert janitor.wait(10) == 0
    assert not sockets.exists()
