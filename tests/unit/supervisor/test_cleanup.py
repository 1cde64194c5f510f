"""Processes by identity, the registry on disk, and what a reaper may touch."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.supervisor.cleanup.listeners import listener_record
from milepost.supervisor.cleanup.processes import (
    RUN_VARIABLE,
    Identity,
    boot_id,
    identity_of,
    kill_all,
    members_of,
)
from milepost.supervisor.cleanup.reaper import MARK, StillRunning, reap
from milepost.supervisor.cleanup.registry import (
    PRIVATE,
    Registry,
    identity_record,
    read_registry,
    registry_path,
)
from milepost.supervisor.cleanup.unfinished import (
    EVENTS,
    METRICS,
    OPEN_STEP,
    RUN_FILE,
    write_open_step,
)

# Of this process alone: several take away what belongs to a run, at the same time.
RUN = f"{os.getpid():016x}"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of run `RUN`."""
    environment = {**os.environ, RUN_VARIABLE: RUN}
    process = subprocess.Popen(
        ["cat"],
        env=environment,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # Between its exec and its first instruction a process shows no environment yet.
    process.stdin.write(b"here\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"here\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PRIVATE).mkdir()
    return tmp_path


def me() -> Identity:
    identity = identity_of(os.getpid())
    assert identity is not None
    return identity


def begin(folder: Path, *records: dict[str, Any], supervisor: Identity | None = None) -> None:
    dead = Identity(2**22 - 1, 1, boot_id())
    record = {
        "kind": "run",
        "run_id": RUN,
        "supervisor": identity_record(supervisor or dead),
    }
    Registry(folder).append(record, *records)


def test_a_process_is_itself(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    assert identity is not None
    assert identity.alive


def test_a_number_that_went_to_another_process_is_not_killed(
    sleeper: subprocess.Popen[bytes],
) -> None:
    """The registry of a run from last week must never hit today's editor."""
    identity = identity_of(sleeper.pid)
    assert identity is not None
    former = Identity(identity.pid, identity.started - 1, identity.boot)
    assert not former.alive
    assert not former.kill()
    other_boot = Identity(identity.pid, identity.started, "another boot")
    assert not other_boot.kill()
    assert sleeper.poll() is None


def test_a_zombie_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper.pid)
    assert identity is not None
    descriptor = os.pidfd_open(sleeper.pid)
    assert identity.kill()
    os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
    assert not identity.alive
    os.close(descriptor)


def test_offspring_is_found_by_its_environment(sleeper: subprocess.Popen[bytes]) -> None:
    assert [each.pid for each in members_of(RUN)] == [sleeper.pid]
    assert list(members_of("another")) == []


def test_kill_all_takes_those_written_down_and_those_that_belong(
    sleeper: subprocess.Popen[bytes],
) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    written = identity_of(stranger.pid)
    assert written is not None
    killed = kill_all([written], RUN, deadline_s=5)
    assert killed == sorted([sleeper.pid, stranger.pid])
    assert stranger.wait() == -signal.SIGKILL


def test_the_registry_survives_a_torn_last_line(folder: Path) -> None:
    begin(folder, {"kind": "folder", "path": "/run/x"})
    with registry_path(folder).open("ab") as file:
        file.write(b'{"kind": "fol')
    assert read_registry(folder).folders == [Path("/run/x")]


def test_a_line_that_is_broken_in_the_middle_is_said_with_its_number(folder: Path) -> None:
    begin(folder)
    with registry_path(folder).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(ValueError, match=r"registry\.jsonl:2: 'kind'"):
        read_registry(folder)


def test_the_registry_is_for_its_owner_only(folder: Path) -> None:
    begin(folder)
    assert registry_path(folder).stat().st_mode & 0o077 == 0


def test_a_second_run_in_the_folder_begins_a_new_account(folder: Path) -> None:
    process = {"kind": "process", **identity_record(me())}
    begin(folder, process)
    Registry(folder).append({"kind": "closed"})
    assert read_registry(folder).closed
    begin(folder)
    owned = read_registry(folder)
    assert (owned.closed, owned.processes) == (False, [])


def test_a_run_that_goes_on_is_not_reaped(folder: Path) -> None:
    begin(folder, supervisor=me())
    with pytest.raises(StillRunning, match=f"process {os.getpid()}"):
        reap(folder)


def test_reap_takes_sockets_segments_and_sandboxes(folder: Path, tmp_path: Path) -> None:
    sockets = tmp_path / "milepost-abc"
    sockets.mkdir()
    (sockets / MARK).write_text(RUN)
    (sockets / "engine-0").touch()
    segment = Path(f"/dev/shm/milepost-{RUN}-1-1")
    segment.touch()
    box = tmp_path / "box"
    box.mkdir()
    begin(
        folder,
        {"kind": "folder", "path": str(sockets)},
        {"kind": "segments", "prefix": f"milepost-{RUN}-"},
        {"kind": "command", "name": "box", "argv": ["rmdir", str(box)]},
        {"kind": "command", "name": "gone", "argv": ["false"]},
        {"kind": "released", "name": "gone"},
    )
    reaped = reap(folder)
    assert reaped.problems == []
    assert (reaped.folders, reaped.segments) == ([str(sockets)], [segment.name])
    assert reaped.commands == ["box"]
    assert not sockets.exists()
    assert not segment.exists()
    assert not box.exists()
    assert json.loads((folder / "summary.json").read_text())["status"] == "killed"


def test_who_still_holds_a_port_of_the_run_is_found_by_the_socket_itself(folder: Path) -> None:
    """The port's number may be somebody else's by now; the socket is the run's for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        record = listener_record("rollout", f"tcp://127.0.0.1:{port}", listener.fileno())
        # It says nothing of the run in its environment.
        holder = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()]
        )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write(b"here\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == b"here\n"
    with socket.create_server(("127.0.0.1", 0)) as other:
        stranger = {**record, "inode": os.fstat(other.fileno()).st_ino + 1_000_000}
        begin(folder, record, stranger)
        reaped = reap(folder)
        assert (reaped.processes, reaped.problems) == ([holder.pid], [])
        assert reaped.ports == [f"tcp://127.0.0.1:{port}"]
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL


def test_a_lease_stands_in_the_registry_and_is_renewed_there(folder: Path) -> None:
    box = {"kind": "command", "name": "box", "argv": ["true"]}
    begin(folder, {**box, "lease_until": 10.0}, {**box, "lease_until": 20.5})
    assert read_registry(folder).leases == {"box": 20.5}
    Registry(folder).append({"kind": "released", "name": "box"})
    assert read_registry(folder).leases == {}


def test_reap_never_removes_what_is_not_a_runs_own(folder: Path, tmp_path: Path) -> None:
    """A registry is a file, and files can be wrong: the reaper looks at what it deletes."""
    precious = tmp_path / "precious"
    precious.mkdir()
    other = tmp_path / "milepost-other"
    other.mkdir()
    (other / MARK).write_text("another run")
    begin(
        folder,
        {"kind": "folder", "path": str(precious)},
        {"kind": "folder", "path": str(other)},
        {"kind": "segments", "prefix": ""},
    )
    reaped = reap(folder)
    assert len(reaped.problems) == 3
    assert precious.exists()
    assert other.exists()
    assert not read_registry(folder).closed, "it is tried again the next time"


def test_a_sandbox_that_cannot_be_released_is_a_problem_by_name(folder: Path) -> None:
    begin(folder, {"kind": "command", "name": "box", "argv": ["false"]})
    (problem,) = reap(folder).problems
    assert problem.startswith("box could not be released by ['false']")


def test_the_summary_of_a_killed_run_is_made_of_what_it_had_written(folder: Path) -> None:
    """Hours of work are in its files; how far it came must not be lost with the process."""
    begin(folder)
    facts = {
        "name": "mine",
        "run_id": RUN,
        "folder": str(folder),
        "pid": 7,
        "steps": 9,
        "resumed_from": 2,
        "started_at": 100.0,
        "ended": False,
        "endpoint": "ipc://x",
    }
    (folder / RUN_FILE).write_text(json.dumps(facts))
    steps = [{"step": step, "time": 100.0 + step} for step in range(5)]
    (folder / METRICS).write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    write_open_step(folder, {"step": 5, "time": 105.0, "train/loss": 0.5})
    events = [
        {"time": 50.0, "source": "evaluator", "kind": "evaluation", "values": {"version": 0}},
        {"time": 60.0, "source": "evaluator", "kind": "evaluation", "values": {"version": 2}},
        {"time": 102.0, "source": "supervisor", "kind": "begun", "values": {}},
        {"time": 103.0, "source": "engine-0", "kind": "restarted", "values": {}},
        {"time": 106.0, "source": "evaluator", "kind": "evaluation", "values": {"version": 5}},
    ]
    (folder / EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events) + '{"ti')
    for name in (METRICS, EVENTS, OPEN_STEP):
        os.utime(folder / name, (110.0, 110.0))
    reap(folder)
    summary = json.loads((folder / "summary.json").read_text())
    told = ("status", "name", "steps", "steps_done", "resumed_from", "restarts", "ended_at")
    assert [summary[name] for name in told] == ["killed", "mine", 9, 5, 2, {"engine-0": 1}, 110.0]
    assert summary["seconds"] == {"starting": 2.0, "running": 8.0, "total": 10.0}
    assert [each["version"] for each in summary["scores"]["all"]] == [0, 2, 5]
    last = (folder / METRICS).read_text().splitlines()[-1]
    assert json.loads(last)["train/loss"] == 0.5


def test_a_record_that_does_not_fit_on_the_disk_leaves_no_half_of_a_line(folder: Path) -> None:
    """Whoever reads the registry after a full disk must be able to read it."""
    resource = importlib.import_module("resource")
    begin(folder)
    before = registry_path(folder).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(OSError, match="10 of"):
            Registry(folder).append({"kind": "closed"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert registry_path(folder).read_bytes() == before


def test_the_summary_of_a_run_that_ended_is_not_overwritten(folder: Path) -> None:
    begin(folder)
    (folder / "summary.json").write_text(json.dumps({"run_id": RUN, "status": "done"}))
    reap(folder)
    assert json.loads((folder / "summary.json").read_text())["status"] == "done"


def test_the_janitor_imports_the_standard_library_only() -> None:
    """It is there all the time, for the one time that it is needed."""
    words = (
        "import sys, milepost.supervisor.cleanup.janitor;"
        "print(*{name.split('.')[0] for name in sys.modules} - {*sys.stdlib_module_names})"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", words], capture_output=True, text=True, check=True
    )
    strangers = {name for name in done.stdout.split() if not name.startswith("__editable__")}
    assert strangers <= {"milepost", "__main__", "__mp_main__", "sitecustomize", "_distutils_hack"}
