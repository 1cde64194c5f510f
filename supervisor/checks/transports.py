"""Checks of how weights get from the trainer to the engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from milepost.actors.weights.transports import refusals
from milepost.configs.problem import Problem
from milepost.supervisor.checks.check import Finding, Subject


def transport_fits(subject: Subject) -> Iterator[Finding]:
    """A publication that hangs between two sides which cannot reach each other."""
    actors = subject.topology.actors
    if actors.publisher is None or actors.engine is None or actors.trainer is None:
        return
    fleets = [actors.engine, *([actors.evaluation_engine] if actors.evaluation_engine else [])]
    found = [
        refusal for fleet in fleets for refusal in refusals(actors.publisher, fleet, actors.trainer)
    ]
    for refusal in dict.fromkeys(found):
        yield Problem(refusal.what, refusal.where, refusal.remedy)


def checksum_is_installed(subject: Subject) -> Iterator[Finding]:
    """A publisher that cannot write its first version."""
    publisher = subject.topology.actors.publisher
    if publisher is None or publisher.transport != "disk-delta":
        return
    if publisher.delta.checksum == "blake3" and find_spec("blake3") is None:
        where = "$.actors.publisher.delta.checksum"
        remedy = "pip install 'milepost[blake3]', or set xxh3-128"
        yield Problem("the package `blake3` is not installed", where, remedy)


def delta_folders_can_be_written(subject: Subject) -> Iterator[Finding]:
    """A publisher, or an engine, that ends with its first version: it has no place to lie."""
    publisher = subject.topology.actors.publisher
    if publisher is None or publisher.transport != "disk-delta":
        return
    delta = publisher.delta
    for name, folder in (("folder", delta.folder), ("local_folder", delta.local_folder)):
        if folder and (what := _no_folder(Path(folder).absolute())):
            where = f"$.actors.publisher.delta.{name}"
            yield Problem(what, where, "name a folder that this user may write")


def _no_folder(path: Path) -> str:
    """Why no folder can be made there, or written; empty when one can."""
    try:
        existing = next(each for each in (path, *path.parents) if each.exists())
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    if not existing.is_dir():
        return f"{existing} is a file, and versions need a folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"no permission to write in {existing}"
    return ""
