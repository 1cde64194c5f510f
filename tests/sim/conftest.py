"""`pytest tests/sim --sim-seed N -s` tells the story of one seed and runs nothing else."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sim-seed", type=int, default=None, help="replay this seed, print its story")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("--sim-seed", default=None) is not None
    chosen = [
        item
        for item in items
        if (item.originalname if isinstance(item, pytest.Function) else "")
        == "test_story_of_a_seed"
    ]
    if asked:
        items[:] = chosen
    else:
        items[:] = [item for item in items if item not in chosen]
