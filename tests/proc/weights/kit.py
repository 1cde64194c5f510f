"""A small checkpoint, versions of it, and both sides of disk-delta over one folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from milepost.actors.arrays import to_bulk
from milepost.actors.weights.delta_writer import Artifact, DeltaSettings, DeltaWriter
from milepost.actors.weights.encoder import Encoder
from milepost.actors.weights.local_copy import Brought, LocalCopy
from milepost.actors.weights.manifest import digest_of
from milepost.actors.weights.payloads import Encoding
from milepost.actors.weights.versions import Versions
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec

Tensors = dict[str, NDArray[Any]]


def checkpoint(folder: Path, seed: int = 0) -> Tensors:
    """Write a baseline of a few odd tensors; returns them."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {
        "empty": np.empty((0, 4), np.float32),
        "norm": generator.standard_normal(7).astype(np.float32),
        "scalar": np.array(3, np.int64),
        "wide": generator.standard_normal((64, 33)).astype(np.float32),
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    return tensors


def specs_of(tensors: Tensors) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype=str(tensors[name].dtype), shape=tensors[name].shape)
        for name in sorted(tensors)
    )


def digest(tensors: Tensors) -> str:
    return digest_of((name, to_bulk(tensors[name]).data) for name in sorted(tensors))


def moved(tensors: Tensors, seed: int, share: float = 0.1) -> Tensors:
    """The tensors after a small step: some elements differ a little."""
    generator = np.random.default_rng(seed)
    out = {name: values.copy() for name, values in tensors.items()}
    wide = out["wide"]
    wide += np.where(generator.random(wide.shape) < share, 1e-3, 0).astype(np.float32)
    return out


@dataclass
class Scene:
    """One writer over a folder; copies are made as they are asked for."""

    root: Path
    encoding: Encoding = "chunks"
    checksum: str = "xxh3-128"
    keep: int = 100
    workers: int = 1
    tensors: Tensors = field(default_factory=dict)
    writer: DeltaWriter | None = None
    encoder_kind: type[Encoder] = Encoder

    def __post_init__(self) -> None:
        self.tensors = checkpoint(self.root / "baseline")
        self.versions = Versions(self.root / "versions")

    def open(self, first: int) -> DeltaWriter:
        """A writer begins its life."""
        self.close()
        settings = DeltaSettings(
            root=self.root / "versions",
            baseline=self.root / "baseline",
            encoding=self.encoding,
            checksum=self.checksum,
            workers=self.workers,
            keep=self.keep,
            deadline_s=60.0,
        )
        self.writer = DeltaWriter(settings, specs_of(self.tensors), first, self.encoder_kind)
        return self.writer

    def write(self, version: int, tensors: Tensors | None = None) -> Artifact:
        """A version of these tensors, which are the present ones from now on."""
        writer = self.writer or self.open(version)
        self.tensors = self.tensors if tensors is None else tensors
        bulks = [(name, to_bulk(values)) for name, values in self.tensors.items()]
        return writer.write(version, digest(self.tensors), bulks)

    def publish(self, version: int, tensors: Tensors | None = None) -> None:
        """Write and confirm."""
        self.write(version, moved(self.tensors, version) if tensors is None else tensors)
        assert self.writer is not None
        self.writer.confirm(version)

    def copy(self, name: str = "host") -> LocalCopy:
        return LocalCopy(self.root / name, self.versions, self.root / "baseline")

    def pull(self, version: int, name: str = "host") -> Brought:
        """Bring a host to a version, and check every byte it has."""
        with self.copy(name).at_version(version) as (brought, views):
            have = {tensor: view.tobytes() for tensor, view in views.items()}
        assert have == {tensor: values.tobytes() for tensor, values in self.tensors.items()}
        return brought

    def folders(self) -> list[str]:
        return sorted(path.name for path in (self.root / "versions").glob("*_v*"))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


def bulk(values: NDArray[Any]) -> Bulk:
    return to_bulk(values)
