"""Stands between the engine actor and the server's processes, and outlives neither by much.

`python -P -m milepost.actors.engine.sglang.keeper COMMAND...`, with a pipe as standard input whose
other end only the actor holds. The server gets a process group and a folder for temporary files of
its own. When the pipe ends (the actor is done, or dead however it died) or the server's first
process exits, the whole group is killed, and what it left in shared memory and in its folder is
removed. A server stops no other way: it has nothing to save, and its own way leaves both behind.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = "/dev/shm/"  # noqa: S108 - where the kernel has it
OWN_SEGMENTS: Final = ("sgl", "sem.mp-")
"""What a server makes itself; other files that it has mapped are somebody else's."""
LOOK_MS: Final = 2000
"""How often the group's shared memory is looked at: its names are gone once it is dead."""


def main(command: list[str]) -> int:
    """Run the command until it or the pipe ends; its exit code, or 0 when the pipe ended first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = tempfile.mkdtemp(prefix="milepost-sglang-")
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": folder},
    )
    segments: set[str] = set()
    try:
        wait(server.pid, segments)
        code = server.poll() or 0
    finally:
        segments |= mapped_segments(server.pid)
        kill_group(server.pid)
        server.wait()
        for path in segments:
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def wait(pid: int, segments: set[str]) -> None:
    """Return when the process or standard input has ended; notes the group's shared memory."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll(LOOK_MS):
            if descriptor == ended or not os.read(0, 64):
                os.close(ended)
                return
        segments |= mapped_segments(pid)


def members(group: int) -> Iterator[int]:
    """Process ids of a group."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold anything; fields count from behind it.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[2]) == group:
            yield int(folder.name)


def mapped_segments(group: int) -> set[str]:
    """Files in shared memory that a server made and processes of the group have mapped.

    By inode: a semaphore is mapped under a name that it has only while it is being made.
    """
    inodes: set[int] = set()
    for pid in members(group):
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue  # it ended meanwhile
        inodes |= {int(line.split()[4]) for line in lines if SHARED_MEMORY in line}
    return {
        entry.path
        for entry in os.scandir(SHARED_MEMORY)
        if entry.name.startswith(OWN_SEGMENTS) and entry.inode() in inodes
    }


def kill_group(group: int) -> None:
    """Kill every process of the group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # all have ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
