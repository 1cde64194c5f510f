"""Processes by an identity that is never used twice, read from /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_VARIABLE: Final = "MILEPOST_RUN"
"""Set to the run's id in every child, and so in whatever the child starts."""
PROC: Final = Path("/proc")
POLL_S: Final = 0.02
LOOKS: Final = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: its number, when it started, and in which boot of the machine.

    Attributes:
        pid: process id; the system uses it again after the process is gone.
        started: clock ticks between boot and its start (field 22 of /proc/PID/stat).
        boot: id of the boot; after another one nothing of the run is alive.
    """

    pid: int
    started: int
    boot: str

    @property
    def alive(self) -> bool:
        """Whether exactly this process exists (a zombie counts as gone)."""
        return self.boot == boot_id() and started_ticks(self.pid) == self.started

    def kill(self) -> bool:
        """SIGKILL this process and no other; False when it is gone.

        The descriptor pins the number, then the start time is compared, then it is killed: a
        number that went to another process in between is never hit.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def boot_id() -> str:
    """Id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def started_ticks(pid: int) -> int | None:
    """When this process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything, so read behind it.
    fields = stat.rpartition(")")[2].split()
    return None if not fields or fields[0] in {"Z", "X"} else int(fields[19])


def identity_of(pid: int) -> Identity | None:
    """Identity of a process that lives now."""
    started = started_ticks(pid)
    return None if started is None else Identity(pid, started, boot_id())


def members_of(run_id: str) -> Iterator[Identity]:
    """Every process of ours whose environment says that it belongs to the run.

    This finds what children started, too, also when it left its session.
    """
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    mine, myself = os.getuid(), os.getpid()
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == myself:
            continue
        try:
            if folder.stat().st_uid != mine:
                continue
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0") and (found := identity_of(int(folder.name))):
            yield found


def kill_all(identities: Iterable[Identity], run_id: str, *, deadline_s: float) -> list[int]:
    """Kill these processes and every member of the run, until none is left.

    Args:
        identities: processes that were written down.
        run_id: whose members are killed.
        deadline_s: seconds to wait for their end.

    Returns:
        Numbers of the processes that were killed.

    Raises:
        TimeoutError: some are still there after the deadline, by number.
    """
    wanted = set(identities)
    killed: set[int] = set()
    until_s = time.monotonic() + deadline_s
    num_empty = 0
    while True:
        # Looked for again each time, since a member may have started another one meanwhile; and
        # twice at the end, since a process shows no environment in the middle of its exec.
        alive = {each for each in wanted | set(members_of(run_id)) if each.alive}
        num_empty = 0 if alive else num_empty + 1
        if num_empty == LOOKS:
            return sorted(killed)
        killed |= {each.pid for each in alive if each.kill()}
        if alive and time.monotonic() > until_s:
            raise TimeoutError(f"processes {sorted(each.pid for each in alive)} survive SIGKILL")
        time.sleep(POLL_S)
