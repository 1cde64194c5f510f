"""A checkpoint and tokenizer of each task, made once for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.configs.recipes.hunt import model as hunt_model
from milepost.configs.recipes.lookup import model as lookup_model


@pytest.fixture(scope="session", params=["lookup", "hunt"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param) / request.param
    create = {"lookup": lookup_model.create, "hunt": hunt_model.create}[request.param]
    create(str(folder), 7, {})
    return folder
