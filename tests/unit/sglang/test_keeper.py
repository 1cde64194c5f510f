"""What the keeper finds and ends, with processes that are no server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from milepost.actors.engine.sglang.keeper import mapped_segments

CHILD = """
import multiprocessing, pathlib, sys
semaphore = multiprocessing.get_context("spawn").Semaphore(1)
print(semaphore._semlock.name, flush=True)
sys.stdin.read()
"""


def test_a_semaphore_of_the_group_is_found_though_it_is_mapped_under_another_name() -> None:
    """Each server leaves one, and nobody else would ever remove it."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    name = child.stdout.readline().strip().removeprefix("/")
    found = mapped_segments(child.pid)
    child.communicate()
    assert found == {f"/dev/shm/sem.{name}"}
    assert not Path(f"/dev/shm/sem.{name}").exists()


def test_the_end_of_the_pipe_ends_the_whole_group() -> None:
    """Also a grandchild that ignores every signal it can ignore."""
    command = "trap '' TERM HUP INT; sleep 600 & echo $!; wait"
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "milepost.actors.engine.sglang.keeper", "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout is not None
    grandchild = int(keeper.stdout.readline())
    assert Path(f"/proc/{grandchild}").exists()
    keeper.communicate(timeout=30)
    assert keeper.returncode == 0
    state = Path(f"/proc/{grandchild}/stat")
    assert not state.exists() or " Z " in state.read_text()


def test_the_servers_own_end_is_the_keepers_end() -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-P", "-m", "milepost.actors.engine.sglang.keeper", "sh", "-c", "exit 7"],
        stdin=subprocess.PIPE,
    )
    assert keeper.wait(timeout=30) == 7
    keeper.communicate()
