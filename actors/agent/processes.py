"""Processes that are either there as a whole or not at all, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine
from typing import Any, Final

from milepost.messages.bus.doorstep import lower_descriptor_limit_of

END_S: Final = 5.0
"""From SIGKILL to the end of a process that nobody waits for any more."""


async def started(creation: Coroutine[Any, Any, Process]) -> Process:
    """Await `asyncio.create_subprocess_exec(...)`; a cancelled caller leaves no process behind.

    A cancellation that meets asyncio between fork and the connection of its pipes kills the
    process alone, not what that has started, and then may wait for ever for pipes that were never
    connected. So the creation goes on to its end, and what it has made is ended here.

    It is others' code: it may open as many files as before this process raised its own limit.

    Raises:
        OSError: it cannot be started.
    """
    task = asyncio.ensure_future(creation)
    try:
        process = await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=END_S)
        if task.done() and not task.cancelled() and task.exception() is None:
            kill_all(task.result())
            # To the end of its pipes, too: until then asyncio's transport is not closed.
            ending = asyncio.ensure_future(task.result().communicate())
            await asyncio.wait({ending}, timeout=END_S)
            ending.cancel()
        raise
    if process.returncode is None:
        lower_descriptor_limit_of(process.pid)
    return process


def kill_all(process: Process) -> None:
    """SIGKILL to a process and, when it leads a group, to all of that."""
    with contextlib.suppress(ProcessLookupError):
        leads = os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL) if leads else process.kill()
