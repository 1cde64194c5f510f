"""The server beside its actor: it never outlives the actor, and its end ends the actor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from contract.kit import PYTHON, config_json
from proc.engine_process import Scene, engine_process
from unit.engine.kit import random_row

from milepost.actors.engine.sglang.keeper import mapped_segments
from milepost.messages.engine import GenerateRefused

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON, reason="MILEPOST_SGLANG_PYTHON names no interpreter"),
]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    sglang = {"python": PYTHON, "silence_s": 20.0}
    async with engine_process(
        config_json(), ask_s=240.0, kind="sglang", slots=16, running_max=8, sglang=sglang
    ) as made:
        await made.says_it_needs_weights.wait()
        segments = {
            path
            for child in family(made.process)
            for path in mapped_segments(os.getpgid(child.pid))
        }
        assert segments, "a server without shared memory: look for it elsewhere"
        yield made
    assert not existing(segments)


def existing(paths: set[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


def family(process: asyncio.subprocess.Process) -> list[psutil.Process]:
    """The keeper and every process of the server."""
    return psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return not alive


async def test_an_actor_that_is_stopped_takes_its_server_along(scene: Scene) -> None:
    refused = await scene.generate("early", random_row(0, 5))
    assert isinstance(refused, GenerateRefused)
    assert refused.retry
    children = family(scene.process)
    assert len(children) >= 3
    assert await scene.terminate() == 0
    assert await asyncio.to_thread(gone, children)


async def test_an_actor_that_is_killed_takes_its_server_along(scene: Scene) -> None:
    """A server without its actor would hold a GPU for ever."""
    children = family(scene.process)
    scene.process.kill()
    await scene.process.wait()
    assert await asyncio.to_thread(gone, children)


async def test_a_scheduler_that_hangs_ends_its_actor(scene: Scene) -> None:
    """Its front answers on as if nothing were wrong."""
    children = family(scene.process)
    scheduler = next(child for child in children if "scheduler" in " ".join(child.cmdline()))
    os.kill(scheduler.pid, signal.SIGSTOP)
    assert await scene.process.wait() != 0
    assert await asyncio.to_thread(gone, children)
