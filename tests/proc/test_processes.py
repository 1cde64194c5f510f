"""A process whose maker is cancelled while it is being made."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import psutil
import pytest

from milepost.actors.agent.processes import started

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
