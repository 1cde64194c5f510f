"""Takes away what a run left: processes, ports, sockets, shared memory, sandboxes, halves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from milepost.supervisor.cleanup.halves import remove_halves
from milepost.supervisor.cleanup.listeners import holders_of, listening
from milepost.supervisor.cleanup.processes import kill_all
from milepost.supervisor.cleanup.registry import PRIVATE, Owned, Registry, read_registry
from milepost.supervisor.cleanup.unfinished import finish

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps it
FOLDER_PREFIX: Final = "milepost-"
"""Every socket folder's name begins with it; nothing else is ever removed."""
MARK: Final = "run-id"
"""File in a socket folder that says whose it is."""
SEGMENT_PREFIX_CHARS_MIN: Final = 8
KILL_S: Final = 5.0
COMMAND_S: Final = 30.0


class StillRunning(RuntimeError):
    """The run has a living supervisor, which does its own cleaning."""


@dataclass(slots=True)
class Reaped:
    """What was taken away, and what could not be."""

    processes: list[int] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    halves: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def reap(run_folder: Path) -> Reaped:
    """Clean up after a run whose supervisor is gone. Does nothing the second time.

    Raises:
        FileNotFoundError: the folder is no run folder.
        StillRunning: its supervisor lives.
        ValueError: the registry cannot be read.
    """
    with one_at_a_time(run_folder):
        owned = read_registry(run_folder)
        if owned.in_use and owned.supervisor is not None:
            pid = owned.supervisor.pid
            raise StillRunning(
                f"{run_folder} is run by process {pid}; `milepost stop --run {run_folder}` ends it"
            )
        problems: list[str] = []
        if not owned.closed and owned.run_id:
            try:
                finish(run_folder, owned.run_id)
            except OSError as error:
                problems.append(f"the end of its files could not be written: {error}")
        return take_away(run_folder, owned, problems)


def take_away(run_folder: Path, owned: Owned, problems: Sequence[str] = ()) -> Reaped:
    """Remove everything that `owned` names and what is half written; write down that it is gone.

    Args:
        run_folder: of the run.
        owned: what.
        problems: for which all of this is tried again the next time.
    """
    if owned.closed:
        return Reaped()
    reaped = remove_all(owned)
    reaped.problems += problems
    if not reaped.problems:  # else somebody may still be writing
        try:
            reaped.halves = remove_halves(run_folder)
        except OSError as error:
            reaped.problems.append(f"what was half written cannot be removed: {error}")
    if not reaped.problems:
        try:
            Registry(run_folder).append({"kind": "closed"})
        except OSError as error:
            reaped.problems.append(f"all is taken away, but that cannot be written down: {error}")
    return reaped


def remove_all(owned: Owned) -> Reaped:
    """Remove everything that `owned` names."""
    reaped = Reaped()
    if owned.run_id:
        _end_processes(owned, reaped)
    for folder in owned.folders:
        _remove_folder(folder, owned.run_id, reaped)
    for prefix in owned.prefixes:
        _remove_segments(prefix, reaped)
    for name, argv in owned.commands.items():
        _release(name, argv, reaped)
    return reaped


def _end_processes(owned: Owned, reaped: Reaped) -> None:
    open_before = listening(owned.listeners)
    # Whoever holds a socket of the run was started by it, whatever its environment says.
    known = {*owned.processes, *holders_of(open_before)}
    try:
        reaped.processes = kill_all(known, owned.run_id, deadline_s=KILL_S)
    except TimeoutError as error:
        reaped.problems.append(str(error))
    held = {each.inode for each in listening(open_before)}
    # What is still open is this process's own, and goes with it.
    reaped.ports = [each.endpoint for each in open_before if each.inode not in held]


@contextmanager
def one_at_a_time(run_folder: Path) -> Iterator[None]:
    """Wait until no other process reaps this run."""
    path = run_folder / PRIVATE / "reap.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_folder(folder: Path, run_id: str, reaped: Reaped) -> None:
    if not folder.exists():
        return
    mark = folder / MARK
    ours = folder.name.startswith(FOLDER_PREFIX) and folder.stat().st_uid == os.getuid()
    if not ours or (mark.exists() and mark.read_text(encoding="ascii") != run_id):
        reaped.problems.append(f"{folder} is not a socket folder of run {run_id}, left alone")
        return
    shutil.rmtree(folder)
    reaped.folders.append(str(folder))


def _remove_segments(prefix: str, reaped: Reaped) -> None:
    if len(prefix) < SEGMENT_PREFIX_CHARS_MIN or "/" in prefix:
        reaped.problems.append(f"shared memory prefix {prefix!r} is too short to be a run's own")
        return
    reaped.segments += remove_segments(prefix)


def remove_segments(prefix: str) -> list[str]:
    """Remove shared memory of ours whose name begins like this; returns the names.

    Whoever has it mapped keeps the bytes; the kernel frees them with the last mapping.
    """
    removed: list[str] = []
    for path in SHARED_MEMORY.iterdir():
        if not path.name.startswith(prefix):
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_uid == os.getuid():
                path.unlink()
                removed.append(path.name)
    return removed


def _release(name: str, argv: list[str], reaped: Reaped) -> None:
    try:
        subprocess.run(
            argv, check=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL, capture_output=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        reaped.problems.append(f"{name} could not be released by {argv}: {error}")
    else:
        reaped.commands.append(name)
