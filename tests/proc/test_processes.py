"""A process whose maker is cancelled while it is being made."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import psutil
import pytest

from milepost.actors.agent.processes import started
from milepost.messages.bus.doorstep import (
    _SOFT_BEFORE,
    raise_descriptor_limit,
)

pytestmark = pytest.mark.timeout(60)


async def test_a_cancelled_creation_leaves_neither_the_process_nor_what_it_started(
    tmp_path: Path,
) -> None:
    """The program runs before asyncio has its pipes: a cancellation can come in between."""
    begun, gate = tmp_path / "begun", asyncio.Event()
    os.mkfifo(begun)
    script = f"sleep 86397.5 & echo $$ $! > {begun}; wait"

    async def slow() -> Process:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, stdin=DEVNULL, stdout=PIPE, start_new_session=True
        )
        await gate.wait()
        return process

    task = asyncio.create_task(started(slow()))
    pids = [int(word) for word in (await asyncio.to_thread(begun.read_text)).split()]
    processes = [psutil.Process(pid) for pid in pids]
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 20.0)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


async def test_what_cannot_be_started_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        await started(asyncio.create_subprocess_exec("/no/such/program"))


async def test_others_code_may_open_as_many_files_as_before_we_raised_our_own_limit() -> None:
    """`select` with a descriptor above 1024 writes past the end of its table.

    The agent's bus on tcp raises the limit of its process; the reward worker is no part of it.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(512, before[1] - 1)
    told = "import resource; input(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
    earlier = _SOFT_BEFORE.copy()
    _SOFT_BEFORE.clear()
    try:
        assert raise_descriptor_limit() == before[1]
        assert raise_descriptor_limit() == before[1]
        child = await started(
            asyncio.create_subprocess_exec(sys.executable, "-c", told, stdin=PIPE, stdout=PIPE)
        )
        out, _ = await child.communicate(b"\n")
        assert [int(word) for word in out.split()] == [low, before[1]]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        _SOFT_BEFORE[:] = earlier
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
