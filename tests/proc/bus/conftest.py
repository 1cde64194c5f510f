"""A world of buses over each transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proc.bus.harness import World


@pytest.fixture(params=["memory", "zeromq"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(request.param, tmp_path)
    yield made
    await made.close()
