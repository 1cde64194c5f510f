"""Real processes: what a dead actor held is freed while the run goes on; a folder that is removed
under a run ends it by name."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from proc.runs import Running, custom, leftovers, members, running, topology, wait_gone

from milepost.supervisor.cleanup.registry import read_registry

WORKER = custom("worker", "worker", "steps = 1000000\nstep_s = 0.05", significant=True)
PERMANENT = 'policy = "permanent"\nbackoff_s = 0.05\nrestarts_max = 2'
LENDING = custom("lending", "lending", replicas=2, restart=PERMANENT)


def shared_memory(run: Running) -> list[str]:
    return sorted(path.name for path in Path("/dev/shm").glob(f"milepost-{run.run_id}-*"))


def test_shared_memory_of_a_killed_actor_is_freed_while_the_run_goes_on(tmp_path: Path) -> None:
    """A run of weeks restarts many an actor; each would leave its arrays in memory for ever."""
    with running(tmp_path, topology(WORKER + LENDING)) as run:
        run.until("lending-1 got 4194304 bytes")
        (segment,) = shared_memory(run)
        assert segment.startswith(f"milepost-{run.run_id}-lending-0.0-")
        run.children()["lending-0"].send_signal(signal.SIGKILL)
        run.until("incarnation 1 starts")
        for _ in range(30):
            if not shared_memory(run):
                break
            run.until(f"step {len(run.lines('metrics.jsonl')) + 20}")
        assert shared_memory(run) == []
        assert run.process.poll() is None
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert run.summary["status"] == "stopped"
        assert leftovers(run.run_id, run.sockets) == []


def test_a_sandbox_whose_lease_ends_is_taken_away_while_the_run_goes_on(tmp_path: Path) -> None:
    """Its owner lives and has forgotten it; one that is renewed stays until the end."""
    with running(tmp_path, topology(WORKER + custom("forgetful", "forgetful"))) as run:
        said = run.until("lease_ended")
        assert "forgetful-0 did not renew forgotten within its 1.0 s" in said
        for _ in range(100):
            owned = read_registry(run.folder)
            if "forgotten" not in owned.commands:
                break
            run.until(f"step {len(run.lines('metrics.jsonl')) + 10}")
        assert owned.commands.keys() == owned.leases.keys() == {"kept"}
        assert owned.leases["kept"] > time.time()
        assert not (run.folder / "forgotten").exists()
        assert (run.folder / "kept").exists()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        assert not (run.folder / "kept").exists()


def test_a_run_whose_folder_is_removed_ends_by_name_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, topology(WORKER + LENDING)) as run:
        run.until("lending-1 got 4194304 bytes")
        run_id, sockets = run.run_id, run.sockets
        # Moved first: the run writes into it while it is taken apart.
        shutil.rmtree(run.folder.rename(tmp_path / "removed"))
        assert run.end() == 1, run.text
        assert f"the run folder {run.folder} was removed while the run went on" in run.text
        assert "Traceback" not in run.text
        assert leftovers(run_id, sockets) == []


def test_a_supervisor_that_dies_after_its_folder_leaves_nothing_either(tmp_path: Path) -> None:
    """The janitor opened the registry at the beginning, and reads what nobody can find any more."""
    with running(tmp_path, topology(WORKER + LENDING)) as run:
        run.until("lending-1 got 4194304 bytes")
        run_id, sockets = run.run_id, run.sockets
        processes = list(run.children().values())
        run.signal(signal.SIGSTOP)
        # Moved first: the run writes into it while it is taken apart.
        shutil.rmtree(run.folder.rename(tmp_path / "removed"))
        run.signal(signal.SIGKILL)
        assert run.end() == -signal.SIGKILL
        assert wait_gone(processes) == []
        until_s = time.monotonic() + 10
        while leftovers(run_id, sockets) and time.monotonic() < until_s:
            wait_gone(members(run_id), 0.2)
        assert leftovers(run_id, sockets) == []
