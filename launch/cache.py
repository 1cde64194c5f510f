"""Checkpoints made by recipes, kept between runs.

A checkpoint is filed under the recipe's name and a key: the hash of the resolved recipe and of
the source of every module that it names. Change either, and it is made anew.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from milepost.configs.dump import topology_hash
from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError
from milepost.configs.run import ModelConfig
from milepost.configs.topology import Topology

SOURCES: Final = ("*.py", "*.jinja")


def cached_folder(recipe: str, topology: Topology) -> Path:
    """Where the checkpoint of this recipe is kept, or will be."""
    root = os.environ.get("MILEPOST_CACHE", "") or Path.home() / ".cache" / "milepost"
    return Path(root) / "checkpoints" / f"{Path(recipe).stem}-{recipe_key(topology)}"


def with_cached(topology: Topology) -> Topology:
    """The topology with `model.path` set where the checkpoint that it wants made is kept already.

    A recipe that cannot be read is left to the checks, which name it.
    """
    model = topology.model
    if model is None or model.path or not model.made_by:
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
    """16 hexadecimal digits over the topology and the source that it names."""
    digest = blake2b(topology_hash(topology).encode(), digest_size=8)
    for path in sorted(set(sources_of(topology))):
        digest.update(f"{path.name}\x1f".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources_of(topology: Topology) -> Iterator[Path]:
    """Files that the outcome of this recipe depends on, as far as they can be seen.

    These are its prompt file and the modules named in it, with their neighbours; of the recipes
    that come with milepost, all of them, since they share code.
    """
    prompts = Path(topology.data.prompts.partition("@")[0] if topology.data is not None else "")
    if prompts.is_file():
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
        yield from (path for path in (data.prompts, data.reward) if ":" in path)
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


def keep(checkpoint: Path, folder: Path) -> None:
    """Copy a finished checkpoint into the cache; a folder that exists there is whole."""
    growing = folder.with_name(f"{folder.name}.{os.getpid()}.growing")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(growing, ignore_errors=True)
    shutil.copytree(checkpoint, growing)
    try:
        growing.rename(folder)
    except OSError:
        # Another run was faster; what it kept is the same.
        shutil.rmtree(growing)
        if not folder.is_dir():
            raise
