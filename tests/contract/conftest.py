"""One engine of each kind for a whole file: an SGLang server takes a while to start.

No longer than that: its scheduler turns in a loop that waits for nothing, and takes a core.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from contract.kit import Served, config_json, engine_config, kinds, make_backend


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=kinds())
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """A dense model's engine, serving version 0."""
    folder = tmp_path_factory.mktemp(f"contract-{request.param}")
    config: dict[str, Any] = config_json()
    (folder / "config.json").write_text(json.dumps(config))
    settings = engine_config(request.param)
    backend = await asyncio.to_thread(make_backend, folder, settings, folder)
    made = Served(request.param, backend, config, folder)
    await made.publish()
    yield made
    backend.close()
    assert not made.failure, made.failure
