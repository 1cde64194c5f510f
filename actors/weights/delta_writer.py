"""The sending side of disk-delta: what engines have confirmed, and the next version beside it.

Two arenas of one layout: one holds the bytes of the version that every engine confirmed, the other
takes the next version in. Only `confirm` lets them change places. So a version that failed leaves
nothing behind that a later difference could stand on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from milepost.actors.weights.arena import Arena
from milepost.actors.weights.chunks import as_bytes
from milepost.actors.weights.encoder import Encoded, EncodeFailed, Encoder
from milepost.actors.weights.full import write_full
from milepost.actors.weights.local_copy import patch
from milepost.actors.weights.manifest import (
    Layout,
    ManifestError,
    compare,
    read_checkpoint,
    tensor_bytes,
)
from milepost.actors.weights.payloads import Encoding
from milepost.actors.weights.versions import (
    Facts,
    State,
    VersionIndex,
    Versions,
    version_name,
)
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec


class DeltaSettings(Struct, frozen=True, kw_only=True):
    """See `DeltaConfig`."""

    root: Path
    baseline: Path
    encoding: Encoding
    checksum: str
    workers: int
    keep: int
    deadline_s: float


class Artifact(NamedTuple):
    """A version that is complete on the disk.

    Attributes:
        density: share of all bytes that changed.
        file_bytes: of its shards.
        encode_s: seconds of the workers' processors.
    """

    version: int
    density: float
    file_bytes: int
    encode_s: float


class DeltaWriter:
    """Writes versions. Used by one thread.

    Args:
        settings: where, and how.
        specs: every tensor of every version, sorted by name.
        first: the version that will be written first in this life of the run.
        encoder: what encodes.

    Raises:
        ManifestError: the version is not made of what the baseline is made of.
        LineageError, PayloadError: what lies in the folder cannot be read.
    """

    def __init__(
        self,
        settings: DeltaSettings,
        specs: tuple[TensorSpec, ...],
        first: int,
        encoder: type[Encoder] = Encoder,
    ) -> None:
        if list(specs) != sorted(specs, key=lambda spec: spec.name):
            raise ManifestError("tensors of a version must come sorted by name")
        places = read_checkpoint(settings.baseline)
        compare(
            (place.spec for place in places.values()),
            specs,
            what=f"the baseline {settings.baseline}",
        )
        self._settings = settings
        self._layout = Layout(specs)
        self._versions = Versions(settings.root)
        settings.root.mkdir(parents=True, exist_ok=True)
        self._arenas = (Arena(self._layout), Arena(self._layout))
        self._held = 0
        """Index of the arena with the confirmed bytes."""
        self._incoming: tuple[State, Artifact] | None = None
        self._state = self._restore(first)
        self._encoder = encoder(
            self._arenas,
            workers=settings.workers,
            encoding=settings.encoding,
            checksum=settings.checksum,
        )

    @property
    def state(self) -> State:
        """What every engine has confirmed; the baseline before that."""
        return self._state

    def write(self, version: int, digest: str, tensors: Iterable[tuple[str, Bulk]]) -> Artifact:
        """Write one version as the difference to the confirmed one.

        Args:
            version: its number.
            digest: of all tensors, as the trainer computed it.
            tensors: every tensor at least once; replicas of one must have the same bytes.

        Raises:
            EncodeFailed: replicas differ, tensors are missing, what came is not what was sent, or
                the version could not be written.
        """
        taking = self._arenas[1 - self._held]
        self._take_in(taking, tensors)
        if (found := taking.digest()) != digest:
            raise EncodeFailed(
                f"version {version} came with digest {found}, announced was {digest}"
            )
        self._versions.go_back(self._state if self._state.version >= 0 else None)
        folder = self._versions.begin(version)
        encoded = self._encoder.encode(
            folder, old=self._held, new=1 - self._held, deadline_s=self._settings.deadline_s
        )
        self._versions.commit(self._index(version, digest, encoded))
        total = sum(tensor_bytes(spec) for spec in self._layout.specs.values())
        density = encoded.num_changed / total if total else 0.0
        artifact = Artifact(version, density, encoded.file_bytes, encoded.cpu_s)
        self._incoming = (State(version=version, digest=digest), artifact)
        return artifact

    def confirm(self, version: int, oldest: int | None = None) -> None:
        """Every engine serves this version: the next one stands on it.

        Args:
            version: that was written last.
            oldest: version that some engine may still be sent to; None: this one.
        """
        if self._incoming is None or self._incoming[0].version != version:
            return
        self._state, self._held = self._incoming[0], 1 - self._held
        self._incoming = None
        self._versions.confirm(self._state)
        self._retain(version if oldest is None else min(version, oldest))

    def close(self) -> None:
        """Stop the workers and give the memory back."""
        self._encoder.close()
        for arena in self._arenas:
            arena.close()

    def _retain(self, oldest: int) -> None:
        """Write the confirmed version in full when its chain is long; drop what nobody needs."""
        versions, version = self._versions, self._state.version
        last = max(versions.full(), default=-1)
        if sum(one >= last for one in versions.complete()) > self._settings.keep:
            write_full(versions.full_folder(version), self._arenas[self._held], self._state)
        if starts := [one for one in versions.full() if one <= oldest]:
            versions.prune(starts[-1])

    # ---- leaves --------------------------------------------------------------------------

    def _restore(self, first: int) -> State:
        """Fill the arena of the confirmed version from the disk; drop what lies after it.

        A run that was resumed at an earlier version goes back to the last one before it.
        """
        confirmed = self._versions.confirmed()
        complete = [] if confirmed is None else self._versions.complete()
        newest = -1 if confirmed is None else confirmed.version
        usable = [version for version in complete if version <= newest and version < first]
        full = [version for version in self._versions.full() if version < first]
        held = self._arenas[self._held]
        start = self._versions.full_folder(full[-1]) if full else self._settings.baseline
        for name, place in read_checkpoint(start).items():
            with place.file.open("rb") as file:
                file.seek(place.offset)
                file.readinto(held.view(name).data)
        state = State(version=full[-1] if full else -1, digest=held.digest())
        if usable and usable[-1] > state.version:
            for index in self._versions.chain(state, usable[-1]):
                folder = self._versions.folder(index.version)
                patch(index, folder, held.view, self._layout, threads=self._settings.workers)
                state = index.state
        self._versions.go_back(state if state.version >= 0 else None)
        return state

    def _take_in(self, arena: Arena, tensors: Iterable[tuple[str, Bulk]]) -> None:
        came: set[str] = set()
        for name, bulk in tensors:
            spec = self._layout.specs.get(name)
            if spec is None or (spec.dtype, spec.shape) != (bulk.dtype, bulk.shape):
                raise EncodeFailed(f"{name} came as {bulk}, announced was {spec}")
            data = as_bytes(bulk.data) if bulk.nbytes else np.empty(0, np.uint8)
            if name in came and not np.array_equal(arena.view(name), data):
                raise EncodeFailed(f"two replicas of {name} have different bytes")
            arena.view(name)[:] = data
            came.add(name)
        if missing := sorted(self._layout.specs.keys() - came):
            raise EncodeFailed(f"{len(missing)} tensors never came: {', '.join(missing[:3])}")

    def _index(self, version: int, digest: str, encoded: Encoded) -> VersionIndex:
        settings = self._settings
        facts = Facts(
            version=version_name(version),
            base_version=version_name(self._state.version),
            delta_encoding=settings.encoding,
            checksum_format=settings.checksum,
            digest=digest,
            base_digest=self._state.digest,
        )
        differing = {
            name: encoding
            for name, encoding in encoded.encodings.items()
            if encoding != settings.encoding
        }
        return VersionIndex(metadata=facts, weight_map=encoded.weight_map, encodings=differing)
