"""Commands in a sandbox: what they may, what they may not, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import psutil
import pytest

from milepost.actors.agent.sandbox import Sandbox, SandboxError, SandboxLimits

pytestmark = pytest.mark.timeout(60)

MARK = "86399.25"
"""Seconds that only a sleep of these tests sleeps."""


def sleepers() -> list[psutil.Process]:
    """Processes of a test of ours: the sleeping, and whoever is about to become or start one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if any(MARK in word for word in words) and process.status() != "zombie":
                found.append(process)
    return found


async def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end soon; the kernel takes a moment for it."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20.0)
    return not alive


async def test_python_and_shell_run_in_one_folder_and_say_how_they_ended() -> None:
    async with Sandbox() as box:
        ran = await box.python("open('seen', 'w').write('yes'); print(6 * 7)")
        assert (ran.exit_code, ran.stdout, ran.text) == (0, "42\n", "42")
        ran = await box.shell("cat seen; echo to people >&2; exit 3")
        assert (ran.exit_code, ran.stdout, ran.stderr) == (3, "yes", "to people\n")
        assert ran.text == "yes\nto people\n[exit code 3]"
        assert (await box.shell("kill -9 $$")).exit_code in {128 + 9, 0}
        folder = box.folder
    assert not folder.exists()


async def test_memory_output_and_files_have_bounds() -> None:
    limits = SandboxLimits(memory_bytes_max=256 << 20, output_bytes_max=1000, file_bytes_max=1000)
    async with Sandbox(limits) as box:
        ran = await box.python("bytearray(1 << 30)")
        assert ran.exit_code == 1
        assert "MemoryError" in ran.stderr
        ran = await box.python("print('x' * 100_000)")
        assert (ran.exit_code, len(ran.stdout), ran.is_cut) == (0, 1000, True)
        ran = await box.shell("head -c 5000 /dev/zero > big; stat -c %s big")
        assert "1000" in ran.stdout or ran.exit_code == 128 + 25


async def test_a_command_out_of_time_goes_with_everything_it_started() -> None:
    """Also what left its session: in a process namespace there is no place to hide."""
    async with Sandbox(SandboxLimits(seconds_max=1.0)) as box:
        ran = await box.shell(f"setsid sleep {MARK} & sleep {MARK} & echo begun; wait")
        assert (ran.is_late, ran.stdout, ran.text) == (True, "begun\n", "begun\n[time was up]")
        if not box.weaknesses:
            assert await gone(sleepers())


async def test_where_the_system_allows_there_is_no_network_no_neighbour_and_nothing_to_spoil(
    tmp_path: Path,
) -> None:
    async with Sandbox() as box:
        ran = await box.shell(f"ls /proc | grep -c '^[0-9]'; touch {tmp_path}/spoiled; env")
        if box.weaknesses:
            pytest.skip(f"this system does not allow it: {box.weaknesses}")
        assert int(ran.stdout.split()[0]) < 10
        assert not (tmp_path / "spoiled").exists()
        assert "Read-only file system" in ran.stderr
        assert "PYTHONPATH" not in ran.stdout
        connect = "import socket; socket.create_connection(('127.0.0.1', 9), 2)"
        told = (await box.python(connect)).stderr
        assert "Network is unreachable" in told or "refused" in told
        interfaces = await box.shell("tail -n +3 /proc/net/dev | cut -d: -f1")
        assert interfaces.stdout.split() == ["lo"]


async def test_a_cancelled_caller_leaves_no_process() -> None:
    async with Sandbox() as box:
        begun = box.folder / "begun"
        os.mkfifo(begun)
        task = asyncio.create_task(box.shell(f"sleep {MARK} & echo > begun; wait"))
        await asyncio.to_thread(begun.read_bytes)
        inside = sleepers()
        assert inside
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await gone(inside)


async def test_nothing_survives_a_killed_owner(tmp_path: Path) -> None:
    """kill -9 of the agent's process: the kernel ends the fence, and with it what is inside."""
    script = (
        "import asyncio, os, tempfile\n"
        "from milepost.actors.agent.sandbox import Sandbox\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "async def main():\n"
        "    async with Sandbox() as box:\n"
        "        os.mkfifo(box.folder / 'begun')\n"
        "        print(box.folder, flush=True)\n"
        f"        await box.shell('setsid sleep {MARK} & sleep {MARK} & echo > begun; wait')\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", script, stdout=PIPE)
    assert owner.stdout is not None
    folder = Path((await owner.stdout.readline()).decode().strip())
    await asyncio.to_thread((folder / "begun").read_bytes)
    inside = sleepers()
    assert inside
    owner.kill()
    await owner.communicate()
    assert await gone(inside)


class Book:
    """Leases that are written down here."""

    def __init__(self) -> None:
        self.taken: dict[str, list[str]] = {}
        self.leases_s: list[float] = []

    async def take(self, name: str, release: list[str], lease_s: float = 0.0) -> None:
        self.taken[name] = release
        self.leases_s.append(lease_s)

    async def release(self, name: str) -> None:
        del self.taken[name]


async def test_the_folder_is_written_down_before_it_exists_with_what_removes_it() -> None:
    """The supervisor runs that command when the agent died, `milepost reap` when both did."""
    book = Book()
    async with Sandbox(leases=book) as box:
        [(name, release)] = book.taken.items()
        assert name == box.folder.name
        (box.folder / "left").write_text("something")
        await asyncio.to_thread(subprocess.run, release, check=True)
        assert not box.folder.exists()
        await asyncio.to_thread(subprocess.run, release, check=True)
    assert book.taken == {}


async def test_folders_that_a_command_closed_are_removed_and_links_out_of_the_box_are_not_followed(
    tmp_path: Path,
) -> None:
    """Whose folder cannot be entered cannot be emptied; and what a link names is not ours."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "kept").touch()
    async with Sandbox() as box:
        await box.shell(f"mkdir -p a/b && touch a/b/c && ln -s {outside} link && chmod 0 a/b a")
        folder = box.folder
    assert not folder.exists()
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o777 == 0o750


async def test_a_box_in_use_renews_its_lease_and_one_that_was_taken_away_says_so() -> None:
    """A box that an episode forgot must not lie there for weeks; one in use must not vanish."""
    book = Book()
    limits = SandboxLimits(seconds_max=10.0)
    async with Sandbox(limits, leases=book, idle_s=0.0) as often:
        await often.shell("true")
        await often.shell("true")
    assert len(book.leases_s) == 3, "each command begins its lease again"
    assert min(book.leases_s) > limits.seconds_max, "it outlasts the command"
    book = Book()
    async with Sandbox(limits, leases=book, idle_s=3600.0) as seldom:
        await seldom.shell("true")
        assert book.leases_s == [2 * 3600.0 + 10.0 + 5.0]
        [release] = book.taken.values()
        await asyncio.to_thread(subprocess.run, release, check=True)
        with pytest.raises(SandboxError, match=r"had no command for 3600.0 s and was taken away"):
            await seldom.python("print(1)")
