"""Fresh checkpoints are written in a process of their own, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milepost.configs.problem import ConfigError
from milepost.configs.run import ModelConfig
from milepost.launch.fresh import write_fresh
from milepost.supervisor.initial_model import Made, noted_made

pytestmark = pytest.mark.timeout(60)

MODULE = """
import pathlib, signal

def whole(folder, seed, options):
    folder = pathlib.Path(folder)
    folder.mkdir()
    (folder / "config.json").write_text(f"{seed} {options}")

def nothing(folder, seed, options):
    pass

def fails(folder, seed, options):
    whole(folder, seed, options)
    raise RuntimeError("no room for another layer")

def hangs(folder, seed, options):
    whole(folder, seed, options)
    signal.pause()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_model.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def write(tmp_path: Path, name: str, deadline_s: float = 30.0) -> Path:
    model = ModelConfig(create=f"user_model:{name}", create_options={"layers": 2})
    folder = tmp_path / "run" / "initial_model"
    write_fresh(model, folder, 7, tmp_path / "run" / "logs" / "create.log", deadline_s)
    return folder


def test_the_function_gets_its_seed_and_options(tmp_path: Path) -> None:
    folder = write(tmp_path, "whole")
    assert (folder / "config.json").read_text(encoding="utf-8") == "7 {'layers': 2}"
    names = sorted(path.name for path in folder.parent.iterdir())
    assert names == ["initial_model", "initial_model.json", "logs"]
    assert noted_made(folder.parent) == Made("user_model:whole", {"layers": 2})


def test_a_checkpoint_that_exists_is_kept_as_it_is(tmp_path: Path) -> None:
    """A resumed run must start from the weights that it started from."""
    folder = write(tmp_path, "whole")
    (folder / "config.json").write_text("trained on", encoding="utf-8")
    write(tmp_path, "whole")
    assert (folder / "config.json").read_text(encoding="utf-8") == "trained on"


@pytest.mark.parametrize(
    ("name", "told", "deadline_s"),
    [
        ("nothing", "wrote no config.json", 30.0),
        ("fails", "failed (exit 1)", 30.0),
        ("hangs", "took longer than system.timeouts.ready_s = 2", 2.0),
    ],
)
def test_a_function_that_does_not_end_well_leaves_no_checkpoint(
    tmp_path: Path, name: str, told: str, deadline_s: float
) -> None:
    """Half a checkpoint would be taken for a whole one by the next attempt."""
    with pytest.raises(ConfigError) as caught:
        write(tmp_path, name, deadline_s)
    (problem,) = caught.value.problems
    assert told in problem.what
    assert problem.where == "$.model.create"
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["logs"]
    assert write(tmp_path, "whole").is_dir()


def test_the_last_words_of_the_function_are_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RuntimeError: no room for another layer"):
        write(tmp_path, "fails")
