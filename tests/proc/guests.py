"""A running job as far as the guests' door can tell: a real door, and peers played here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from proc.hosts import Host, host

from milepost.configs.actors import GuestsConfig
from milepost.messages.agent import RunEnds


@contextlib.asynccontextmanager
async def job(folder: Path, reward: str = "", **config: Any) -> AsyncIterator[Host]:
    """The door, open, with nobody there yet."""
    async with host(folder, "guests", reward, guests=GuestsConfig(**config)) as scene:
        await scene.room(0)
        yield scene


async def end(scene: Host, status: str, reason: str) -> None:
    """The supervisor says how the run ends, and stops the door."""
    assert scene.process is not None
    await scene.tell(RunEnds(status=status, reason=reason), by="supervisor")
    scene.process.terminate()
    assert await scene.process.wait() == 0
