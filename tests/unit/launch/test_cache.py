"""Where a recipe's checkpoint is kept: another key for everything that changes the checkpoint."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from milepost.configs.load import decode, load_topology
from milepost.configs.problem import ConfigError
from milepost.configs.run import ModelConfig
from milepost.configs.topology import Topology
from milepost.launch.cache import (
    cached_folder,
    keep,
    keep_if_possible,
    locate_source,
    make_room,
    recipe_key,
    sources_of,
    with_cached,
)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user's with a task and a neighbour, and a prompt file."""
    package = tmp_path / "cached_task"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        # Importing it would be a mistake: it runs the user's code in the supervisor.
        (package / name).write_text("raise SystemExit\n", encoding="utf-8")
    (package / "inner" / "clerk.py").write_text("x = 1\n", encoding="utf-8")
    (package / "inner" / "words.py").write_text("y = 1\n", encoding="utf-8")
    (tmp_path / "p.jsonl").write_text("{}\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


def topology(prompts: str, steps: int = 1) -> Topology:
    return decode({"run": {"name": "w", "steps": steps}, "data": {"prompts": prompts}})


def test_a_kept_checkpoint_takes_the_place_of_the_recipe_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` and `run` look at the checkpoint itself then, and do not promise to make one."""
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    asked = load_topology("lookup")
    assert with_cached(asked) is asked
    kept = cached_folder("lookup_warmup", load_topology("lookup_warmup"))
    kept.mkdir(parents=True)
    found = with_cached(asked).model
    assert found is not None
    assert (found.path, found.made_by) == (str(kept), "")
    for other in ("model.create=a:b", "model.create_options.seed=1"):
        both = load_topology("lookup", [other])
        assert with_cached(both) is both, "a check says that only one of them counts"


def test_a_module_is_found_without_importing_any_of_its_packages(task: Path) -> None:
    expected = task / "cached_task" / "inner" / "clerk.py"
    assert locate_source("cached_task.inner.clerk") == expected
    assert "cached_task" not in sys.modules
    assert locate_source("cached_task.inner") == task / "cached_task" / "inner" / "__init__.py"
    assert locate_source("cached_task.inner.nothing") is None
    assert locate_source("no_such_module_at_all") is None
    lookup = locate_source("milepost.configs.recipes.lookup.clerk")
    assert lookup is not None
    assert lookup.name == "clerk.py"


def test_the_key_changes_with_the_topology_the_code_and_its_neighbours(task: Path) -> None:
    """A stale starting checkpoint would make a change of the task look like it did nothing."""
    prompts = "cached_task.inner.clerk:prompts"
    keys = {recipe_key(topology(prompts)), recipe_key(topology(prompts, steps=2))}
    for name in ("clerk.py", "words.py"):
        path = task / "cached_task" / "inner" / name
        path.write_text(path.read_text(encoding="utf-8") + "# more\n", encoding="utf-8")
        keys.add(recipe_key(topology(prompts)))
    assert len(keys) == 4
    assert recipe_key(topology(prompts)) == recipe_key(topology(prompts))


def test_the_key_changes_with_the_prompt_file(task: Path) -> None:
    path = task / "p.jsonl"
    before = recipe_key(topology(f"{path}@[0:1]"))
    path.write_text("{} \n", encoding="utf-8")
    assert recipe_key(topology(f"{path}@[0:1]")) != before


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_the_key_changes_with_the_model_that_the_recipe_starts_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """The same words name another model in another project, or once its files were replaced."""
    keys = set()
    for project in ("a", "b"):
        base = tmp_path / project / "base"
        base.mkdir(parents=True)
        (base / file).write_bytes(b"one")
        monkeypatch.chdir(base.parent)
        asked = replace(topology("./p.jsonl"), model=ModelConfig(path="base"))
        keys.add(recipe_key(asked))
    assert recipe_key(asked) in keys
    (base / "logs").mkdir()
    assert recipe_key(asked) in keys, "no file of the model"
    (base / file).write_bytes(b"two, and longer")
    keys.add(recipe_key(asked))
    written_ns = (base / file).stat().st_mtime_ns
    os.utime(base / file, ns=(written_ns, written_ns + 1))
    keys.add(recipe_key(asked))
    assert len(keys) == 4


@pytest.mark.parametrize("source", ["~/p.jsonl", "~/p.jsonl@[:1]", "./p.jsonl@[:1]", "a@b.jsonl"])
def test_the_prompt_file_of_the_key_is_the_one_that_is_read(
    task: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """A home folder, a slice, a sign in the name: one rule says what a source of prompts is."""
    monkeypatch.setenv("HOME", str(task))
    monkeypatch.chdir(task)
    (task / "a@b.jsonl").touch()
    names = [path.name for path in sources_of(topology(source))]
    assert names == ["a@b.jsonl" if source == "a@b.jsonl" else "p.jsonl"]


def test_the_warm_up_depends_on_the_code_that_the_recipes_share() -> None:
    names = {path.name for path in sources_of(load_topology("lookup_warmup"))}
    assert {"clerk.py", "directory.py", "tokenizer.py", "chat_template.jinja"} <= names


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_CACHE", "/somewhere")
    folder = cached_folder("sub/warm.toml", topology("p.jsonl"))
    assert folder.parent == Path("/somewhere/checkpoints")
    assert folder.name.startswith("warm-")
    monkeypatch.delenv("MILEPOST_CACHE")
    monkeypatch.setenv("HOME", "/a-home")
    assert cached_folder("w", topology("p.jsonl")).parent == Path(
        "/a-home/.cache/milepost/checkpoints"
    )


def test_a_kept_checkpoint_is_a_copy_and_the_first_one_stays(tmp_path: Path) -> None:
    """Two runs that make the same checkpoint at once both go on, from one of them."""
    checkpoint, kept = tmp_path / "hf", tmp_path / "cache" / "w-1"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("first", encoding="utf-8")
    keep(checkpoint, kept)
    (checkpoint / "config.json").write_text("second", encoding="utf-8")
    keep(checkpoint, kept)
    assert (kept / "config.json").read_text(encoding="utf-8") == "first"
    assert [path.name for path in kept.parent.iterdir()] == ["w-1"]


def test_a_copy_that_somebody_interrupts_leaves_no_half_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name has the number of a process: nobody would ever write over it."""
    checkpoint, kept = tmp_path / "hf", tmp_path / "cache" / "w-1"
    checkpoint.mkdir()

    def interrupted(_: Path, growing: Path) -> None:
        growing.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copytree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep(checkpoint, kept)
    assert list(kept.parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    """Else a minute of warm-up ends in a traceback, and the run it was for never starts."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        make_room(tmp_path / "file" / "checkpoints" / "w-1")
    make_room(tmp_path / "cache" / "checkpoints" / "w-1")
    assert list((tmp_path / "cache" / "checkpoints").iterdir()) == []


def test_a_checkpoint_that_cannot_be_kept_is_used_where_it_was_made(tmp_path: Path) -> None:
    """The cache may fill up during the warm-up; what the warm-up made is good all the same."""
    checkpoint = tmp_path / "hf"
    checkpoint.mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    path, told = keep_if_possible(checkpoint, tmp_path / "file" / "w-1")
    assert path == checkpoint
    assert told.startswith(f"warning: used from {checkpoint}, it could not be kept in")
    assert keep_if_possible(checkpoint, tmp_path / "w-1")[0] == tmp_path / "w-1"
