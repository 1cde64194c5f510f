"""A folder of runs, made once: every test only reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.view.kit import Shelf

from milepost.launch.view.links import Links
from milepost.launch.view.runs import OpenRun, Runs


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("view") / "runs").write()


@pytest.fixture
def runs(shelf: Shelf) -> Iterator[Runs]:
    found = Runs(shelf.folder)
    yield found
    found.close()


@pytest.fixture
def run(runs: Runs) -> OpenRun:
    return runs.open("lookup-1")


@pytest.fixture
def links() -> Links:
    return Links("/token")


@pytest.fixture
def model(shelf: Shelf) -> Path:
    return shelf.model
