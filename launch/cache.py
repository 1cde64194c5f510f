"""Checkpoints made by recipes, kept between runs.

A checkpoint is filed under the recipe's name and a key: the hash of the resolved recipe, of the
source of every module that it names, and of which files its model consists of. Change any of
these, and it is made anew.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from msgspec.structs import replace

from milepost.actors.rollout.prompts import file_of, is_file
from milepost.configs.dump import topology_hash
from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import ModelConfig
from milepost.configs.topology import Topology

SOURCES: Final = ("*.py", "*.jinja")


def cached_folder(recipe: str, topology: Topology) -> Path:
    """Where the checkpoint of this recipe is kept, or will be."""
    root = os.environ.get("MILEPOST_CACHE", "") or Path.home() / ".cache" / "milepost"
    return Path(root) / "checkpoints" / f"{Path(recipe).stem}-{recipe_key(topology)}"


def with_cached(topology: Topology) -> Topology:
    """The topology with `model.path` set where the checkpoint that it wants made is kept already.

    A recipe that cannot be read is left to the checks, which name it; and so is a checkpoint that
    is named in two ways.
    """
    model = topology.model
    if model is None or not model.made_by or model.path or model.create or model.create_options:
        return topology
    try:
        kept = cached_folder(model.made_by, load_topology(model.made_by))
    except ConfigError:
        return topology
    return with_checkpoint(topology, model, kept) if kept.is_dir() else topology


def with_checkpoint(topology: Topology, model: ModelConfig, folder: Path) -> Topology:
    """The topology whose model lies in this folder."""
    found = replace(model, path=str(folder), made_by="", create="", create_options={})
    return replace(topology, model=found)


def recipe_key(topology: Topology) -> str:
    """16 hexadecimal digits over the topology, the source that it names, and its model."""
    digest = blake2b(topology_hash(topology).encode(), digest_size=8)
    for path in sorted(set(sources_of(topology))):
        digest.update(f"{path.name}\x1f".encode())
        digest.update(path.read_bytes())
    if topology.model is not None and topology.model.path:
        for line in _model_files(topology.model.folder):
            digest.update(f"{line}\x1f".encode())
    return digest.hexdigest()


def _model_files(folder: Path) -> Iterator[str]:
    """Place, size and time of each file of a checkpoint: weights take too long to read."""
    for path in sorted(folder.glob("*")):
        if path.is_file():
            found = path.stat()
            yield f"{path.absolute()} {found.st_size} {found.st_mtime_ns}"


def sources_of(topology: Topology) -> Iterator[Path]:
    """Files that the outcome of this recipe depends on, as far as they can be seen.

    These are its prompt file and the modules named in it, with their neighbours; of the recipes
    that come with milepost, all of them, since they share code.
    """
    data = topology.data
    if data is not None and is_file(data.prompts) and (prompts := file_of(data.prompts)).is_file():
        yield prompts
    for path in _import_paths(topology):
        source = locate_source(path.partition(":")[0])
        if source is None:
            continue
        if source.parent.name != source.stem and not (source.parent / "__init__.py").is_file():
            yield source
            continue
        top = next((each for each in source.parents if each.name == "recipes"), source.parent)
        for pattern in SOURCES:
            yield from top.rglob(pattern)


def _import_paths(topology: Topology) -> Iterator[str]:
    data, model, agent = topology.data, topology.model, topology.actors.agent
    if data is not None:
        yield from (
            path for path in (data.prompts, data.reward) if ":" in path and not is_file(path)
        )
    if model is not None and model.create:
        yield model.create
    if agent is not None:
        yield agent.agent


def locate_source(module: str) -> Path | None:
    """The file of a module, found without importing it or its packages; None when there is none.

    Importing would run the user's code, and with it torch, in the process that watches the run.
    """
    first, *rest = module.split(".")
    if first == "milepost":
        folders = [Path(sys.modules[__name__].__file__ or "").parent.parent]
    else:
        spec = find_spec(first)
        if spec is None:
            return None
        if not rest:
            return Path(spec.origin) if spec.origin and spec.has_location else None
        folders = [Path(each) for each in spec.submodule_search_locations or ()]
    for folder in folders:
        stem = folder.joinpath(*rest)
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
    return None


def make_room(folder: Path) -> None:
    """Try that a checkpoint can be kept in `folder`, before anybody works to make it.

    Raises:
        ConfigError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder.parent):
            pass
    except OSError as error:
        what = f"the cache of starting checkpoints cannot be written: {error.strerror}"
        remedy = "set MILEPOST_CACHE to a folder that can, or model.path to a checkpoint"
        raise ConfigError([Problem(what, str(folder.parent), remedy)]) from error


def keep_if_possible(checkpoint: Path, folder: Path) -> tuple[Path, str]:
    """Where the checkpoint can be read from now on, and a line for a person about it."""
    try:
        keep(checkpoint, folder)
    except OSError as error:
        why = f"{folder}: {error.strerror or error}"
        return checkpoint, f"warning: used from {checkpoint}, it could not be kept in {why}"
    return folder, f"kept for later runs: {folder}"


def keep(checkpoint: Path, folder: Path) -> None:
    """Copy a finished checkpoint into the cache; a folder that exists there is whole.

    Raises:
        OSError: the cache cannot be written; nothing half copied is left.
    """
    growing = folder.with_name(f"{folder.name}.{os.getpid()}.growing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(growing, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, growing)
        growing.rename(folder)
    except OSError:
        # Another run was faster; what it kept is the same.
        if not folder.is_dir():
            raise
    finally:
        # Also of a copy that somebody interrupted: no other process has this name for its own.
        shutil.rmtree(growing, ignore_errors=True)
