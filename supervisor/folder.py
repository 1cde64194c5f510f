"""The run folder: owned by one supervisor at a time, and told how everything began."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import sys
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from milepost.configs.dump import dump_topology, topology_hash
from milepost.configs.seeds import derive_seed
from milepost.configs.spec import ActorSpec
from milepost.configs.topology import Topology
from milepost.supervisor.cleanup.reaper import reap
from milepost.supervisor.cleanup.registry import PRIVATE, registry_path
from milepost.supervisor.cleanup.unfinished import SUMMARY
from milepost.supervisor.recording.resume import EARLIER_SUMMARY

PACKAGES: Final = (
    "milepost",
    "msgpack",
    "msgspec",
    "numpy",
    "pyzmq",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
)
"""Written down with their versions; read from package metadata, none is imported."""


TOPOLOGY: Final = "topology.toml"
"""Written first: a folder with it is that of a run."""
RESERVE: Final = f"{PRIVATE}/reserve"
RESERVE_BYTES: Final = 1 << 20
"""The last events and metrics, the summary and the report."""


class FolderInUse(RuntimeError):
    """Another living supervisor owns this run folder."""


class RunFolder:
    """One run's folder, locked while its supervisor lives.

    Args:
        path: made if missing. What a killed run left behind is reaped first.

    Raises:
        FolderInUse: another supervisor has it.
        OSError: it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        private = self.path / PRIVATE
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        (private / "specs").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(private / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise FolderInUse(
                f"{self.path} belongs to a run that goes on;"
                f" `milepost stop --run {self.path}` ends it"
            ) from error
        if registry_path(self.path).exists():
            reap(self.path)
        self._identity = self._look()

    def _look(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    def is_there(self) -> bool:
        """Whether its path still leads to the folder that was opened, with our part in it."""
        try:
            return self._look() == self._identity and registry_path(self.path).exists()
        except OSError:
            return False

    def write_beginning(self, topology: Topology, actors: Iterable[str]) -> None:
        """The resolved topology, versions and seeds, before the first child starts."""
        (self.path / TOPOLOGY).write_text(dump_topology(topology), encoding="utf-8")
        seed = topology.run.seed
        facts = {
            "topology_hash": topology_hash(topology),
            "versions": versions(),
            "seed": seed,
            "seeds": {actor: derive_seed(seed, actor) for actor in actors},
            "arguments": sys.argv[1:],
            "started_at": time.time(),
        }
        self.write_json("versions.json", facts)

    def keep_reserve(self) -> None:
        """Take some room on the disk, for the end of the run if that finds it full."""
        with (self.path / RESERVE).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def free_reserve(self) -> None:
        """Give that room to what has to be written at the end."""
        with contextlib.suppress(OSError):
            (self.path / RESERVE).unlink()

    def forget_summary(self) -> None:
        """Put the summary of the last life aside, if it left one: this one has not ended."""
        aside = self.path / EARLIER_SUMMARY
        aside.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self.path / SUMMARY).replace(aside)

    def write_spec(self, spec: ActorSpec) -> Path:
        """What one child reads first; readable by its owner only, it may hold a key."""
        path = self.path / PRIVATE / "specs" / f"{spec.actor}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(spec))
        return path

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Write one JSON file whole: a reader sees the old or the new one, never half."""
        path = self.path / name
        draft = path.with_name(f"{path.name}.draft")
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        draft.write_bytes(orjson.dumps(value, default=repr, option=options))
        draft.replace(path)

    def close(self) -> None:
        """Let another supervisor have the folder."""
        os.close(self._lock)


def versions() -> dict[str, str]:
    """Versions of Python, the system, and the packages that can change a result."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = ""
    return found
