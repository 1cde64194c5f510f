"""What a checkpoint on disk consists of, and whether a model can go on from it.

All of it is told from the metadata that torch's DCP writes beside the shards: no tensor is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251 - the error alone: torch reads
from typing import Final

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

METADATA: Final = ".metadata"
PARAMETER: Final = "model/"
"""Before the name of a parameter; its moments have their own words there."""
NAMED_MAX: Final = 3
UNREADABLE: Final = (
    ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, OSError,
    RuntimeError, TypeError, UnpicklingError, ValueError,
)  # fmt: skip
"""What reading metadata raises that a crash has cut, or that something else wrote over."""


class CheckpointDamaged(RuntimeError):
    """The checkpoint is not what this model and optimizer need, to the last tensor."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What one folder holds.

    Attributes:
        shapes: of each tensor, by its name in the checkpoint; None of what is no tensor.
        ends: of each file that they lie in, where the last of them ends, in bytes.
    """

    shapes: Mapping[str, tuple[int, ...] | None]
    ends: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path) -> Stored:
        """Read the metadata of a checkpoint.

        Raises:
            CheckpointDamaged: there is none, or it cannot be read.
        """
        try:
            return cls._of(FileSystemReader(folder).read_metadata())
        except UNREADABLE as error:
            what = f"{folder / METADATA} cannot be read: {type(error).__name__}: {error}"
            raise CheckpointDamaged(what) from error

    @classmethod
    def _of(cls, metadata: Metadata) -> Stored:
        ends: dict[str, int] = {}
        for place in metadata.storage_data.values():
            end = place.offset + place.length
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), end)
        return cls(
            shapes={
                name: tuple(each.size) if isinstance(each, TensorStorageMetadata) else None
                for name, each in metadata.state_dict_metadata.items()
            },
            ends=ends,
        )

    def damage(self, folder: Path) -> Iterator[str]:
        """Each file that is missing, or shorter than what lies in it."""
        for name, end in sorted(self.ends.items()):
            path = folder / name
            if not path.is_file():
                yield f"{name} is missing"
            elif (size := path.stat().st_size) < end:
                yield f"{name} has {size} bytes, its tensors end at {end}"

    def misfits(self, wanted: Mapping[str, tuple[int, ...]]) -> str:
        """How its tensors differ from these, in words; empty when they do not."""
        faults: list[str] = []
        if missing := wanted.keys() - self.shapes.keys():
            faults.append(f"lacks {_some(missing)}")
        if extra := self.shapes.keys() - wanted.keys():
            faults.append(f"has {_some(extra)} left over")
        other = [
            f"{name} as {_shown(self.shapes[name])}, not {_shown(wanted[name])}"
            for name in sorted(wanted.keys() & self.shapes.keys())
            if self.shapes[name] != wanted[name]
        ]
        if other:
            faults.append(f"has {_some(other)}")
        return " and ".join(faults)


def _shown(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else str(shape)


def _some(names: Iterable[str]) -> str:
    # Parameters say more than their moments, which differ in the same way.
    ordered = sorted(names, key=lambda name: (not name.startswith(PARAMETER), name))
    more = f" and {len(ordered) - NAMED_MAX} more" if len(ordered) > NAMED_MAX else ""
    return ", ".join(ordered[:NAMED_MAX]) + more
