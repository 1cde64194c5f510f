"""The folder of all versions: what is complete, what follows on what, what may go.

A version is complete when its index lies beside its shards; the index is written last. Every
index names the version and the digest that it stands on, so a chain of differences either leads
from bytes that a reader has to the ones it wants, or is refused.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from milepost.actors.weights.chunks import CHUNK_BYTES
from milepost.actors.weights.files import flush_folder, write_whole
from milepost.actors.weights.manifest import INDEX

BASELINE: Final = "baseline"
"""Base of a version that stands on the starting checkpoint itself."""
CONFIRMED: Final = "confirmed.json"
_DELTA: Final = re.compile(r"weight_v(\d{6,})")
_FULL: Final = re.compile(r"full_v(\d{6,})")


class LineageError(RuntimeError):
    """No chain of differences leads from what is there to what is wanted; the text names both."""


class State(Struct, frozen=True, kw_only=True):
    """Which bytes somebody has."""

    version: int
    """-1: those of the starting checkpoint."""
    digest: str
    """xxh3-128 hex over name (UTF-8) and bytes of each tensor, in the order of names."""


class Facts(Struct, frozen=True, kw_only=True):
    """`metadata` of an index."""

    version: str
    base_version: str
    """Six digits, or `BASELINE`."""
    delta_encoding: str
    compression_format: str = "zstd"
    checksum_format: str
    digest: str
    """Of all tensors of this version."""
    base_digest: str
    """Of all tensors of the base."""
    chunk_bytes: int = CHUNK_BYTES


class VersionIndex(Struct, frozen=True, kw_only=True):
    """`model.safetensors.index.json` of a version."""

    metadata: Facts
    weight_map: dict[str, str]
    """Tensor -> file; tensors that did not change are not in it."""
    encodings: dict[str, str] = {}
    """Tensors written in another encoding than `delta_encoding`."""

    @property
    def version(self) -> int:
        """Its number."""
        return int(self.metadata.version)

    @property
    def base(self) -> State:
        """What it stands on."""
        name = self.metadata.base_version
        version = -1 if name == BASELINE else int(name)
        return State(version=version, digest=self.metadata.base_digest)

    @property
    def state(self) -> State:
        """What it leads to."""
        return State(version=self.version, digest=self.metadata.digest)

    def encoding(self, name: str) -> str:
        """Of one tensor."""
        return self.encodings.get(name, self.metadata.delta_encoding)


def version_name(version: int) -> str:
    """As in an index."""
    return BASELINE if version < 0 else f"{version:06d}"


@dataclass(frozen=True, slots=True)
class Versions:
    """One folder of versions.

    Attributes:
        root: the folder; made when missing.
    """

    root: Path

    def folder(self, version: int) -> Path:
        """Of one version's differences."""
        return self.root / f"weight_v{version:06d}"

    def full_folder(self, version: int) -> Path:
        """Of one version in full."""
        return self.root / f"full_v{version:06d}"

    # ---- reading -------------------------------------------------------------------------

    def complete(self) -> list[int]:
        """Versions whose index is there, ascending."""
        return self._with_index(_DELTA)

    def full(self) -> list[int]:
        """Versions that lie here in full, ascending."""
        return self._with_index(_FULL)

    def read(self, version: int) -> VersionIndex:
        """Index of a version.

        Raises:
            LineageError: it is not (completely) there, or is damaged.
        """
        path = self.folder(version) / INDEX
        try:
            index = msgspec.json.decode(path.read_bytes(), type=VersionIndex)
        except FileNotFoundError as error:
            have = ", ".join(str(one) for one in self.complete()) or "none"
            raise LineageError(
                f"version {version} is not complete in {self.root}, complete are {have}"
            ) from error
        except msgspec.DecodeError as error:
            raise LineageError(f"{path} is damaged: {error}") from error
        if index.version != version:
            raise LineageError(f"{path} is of version {index.version}")
        return index

    def chain(self, have: State, want: int) -> list[VersionIndex]:
        """Differences that lead from `have` to version `want`, in the order of their use.

        Raises:
            LineageError: there is no such chain.
        """
        links: list[VersionIndex] = []
        at = want
        while True:
            if at == have.version:
                if at >= 0 and not links and self.read(at).metadata.digest != have.digest:
                    raise LineageError(self._broken(have, want, f"version {at} has other bytes"))
                return links[::-1]
            if at < have.version or at < 0:
                raise LineageError(self._broken(have, want, f"it leads to {version_name(at)}"))
            index = self.read(at)
            links.append(index)
            base = index.base
            if base.version >= at:
                raise LineageError(f"version {at} in {self.root} stands on {base.version}")
            if base.version == have.version and base.digest != have.digest:
                why = f"version {at} stands on {base.digest}"
                raise LineageError(self._broken(have, want, why))
            at = base.version

    def confirmed(self) -> State | None:
        """The newest version that every engine confirmed; None before the first."""
        path = self.root / CONFIRMED
        if not path.is_file():
            return None
        return msgspec.json.decode(path.read_bytes(), type=State)

    # ---- writing -------------------------------------------------------------------------

    def begin(self, version: int) -> Path:
        """An empty folder for a version that will be written; what lay there is removed."""
        folder = self.folder(version)
        self.drop(version)
        folder.mkdir(parents=True)
        flush_folder(self.root)
        return folder

    def commit(self, index: VersionIndex) -> None:
        """Make a version complete: its shards are on the disk already, the index is the last."""
        folder = self.folder(index.version)
        flush_folder(folder)
        write_whole(folder / INDEX, msgspec.json.format(msgspec.json.encode(index)))

    def confirm(self, state: State) -> None:
        """Every engine serves this version."""
        write_whole(self.root / CONFIRMED, msgspec.json.encode(state))

    def drop(self, version: int) -> None:
        """Remove a version; its index first, so that no reader takes the rest for whole."""
        _remove(self.folder(version))

    def go_back(self, state: State | None) -> None:
        """Remove every version after `state`, and whatever was not finished.

        Args:
            state: None removes everything.
        """
        newest = state.version if state is not None else -2
        complete = set(self.complete())
        for path in sorted(self.root.glob("weight_v*")):
            found = _DELTA.fullmatch(path.name)
            if found and (int(found[1]) not in complete or int(found[1]) > newest):
                _remove(path)
        for path in sorted(self.root.glob("full_v*")):
            found = _FULL.fullmatch(path.name)
            if found and (not (path / INDEX).is_file() or int(found[1]) > newest):
                _remove(path)
        if state is None:
            (self.root / CONFIRMED).unlink(missing_ok=True)
        else:
            self.confirm(state)

    def prune(self, full: int) -> None:
        """Version `full` lies here in full: what is older serves nobody."""
        for version in self.complete():
            if version < full:
                self.drop(version)
        for version in self.full():
            if version < full:
                _remove(self.full_folder(version))

    def _with_index(self, pattern: re.Pattern[str]) -> list[int]:
        if not self.root.is_dir():
            return []
        found = [(pattern.fullmatch(path.name), path) for path in self.root.iterdir()]
        return sorted(int(match[1]) for match, path in found if match and (path / INDEX).is_file())

    def _broken(self, have: State, want: int, why: str) -> str:
        return (
            f"no chain in {self.root} leads from version {version_name(have.version)} "
            f"({have.digest}) to {want}: {why}"
        )


def _remove(folder: Path) -> None:
    if folder.is_dir():
        (folder / INDEX).unlink(missing_ok=True)
        flush_folder(folder)
        shutil.rmtree(folder)
        flush_folder(folder.parent)
