"""What a version is made of: names, dtypes, shapes; read from checkpoints, compared by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from milepost.configs.base import NonNegative
from milepost.messages.bulk import ITEM_BYTES
from milepost.messages.engine import TensorSpec

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
DTYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "F32": "float32",
    "I64": "int64",
    "F64": "float64",
}
"""Words of safetensors -> words of `Bulk`."""
HEADER_BYTES_MAX: Final = 100_000_000
_NAMED_MAX: Final = 3
_ALIGNMENT: Final = 64


class _Index(msgspec.Struct):
    """`model.safetensors.index.json`, as far as it matters here."""

    weight_map: dict[str, str]


class _Entry(msgspec.Struct):
    """One tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[NonNegative, ...]
    data_offsets: tuple[NonNegative, NonNegative]


class ManifestError(ValueError):
    """Two sides do not have the same tensors, or a checkpoint cannot be read; named with values."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's bytes lie.

    Attributes:
        file: absolute path of a safetensors file.
        offset: of its first byte in the file.
    """

    spec: TensorSpec
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        return tensor_bytes(self.spec)


def tensor_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor."""
    return prod(spec.shape) * ITEM_BYTES[spec.dtype]


def compare(found: Iterable[TensorSpec], wanted: Iterable[TensorSpec], *, what: str) -> None:
    """Both sides have exactly the same tensors, by name, dtype, shape and so bytes.

    Raises:
        ManifestError: names those that are missing, that nobody knows, and that differ.
    """
    have = {spec.name: spec for spec in found}
    want = {spec.name: spec for spec in wanted}
    faults: list[str] = []
    if missing := sorted(want.keys() - have.keys()):
        faults.append(f"lacks {_some(missing)}")
    if unknown := sorted(have.keys() - want.keys()):
        faults.append(f"has {_some(unknown)}, which the version has not")
    differing = [name for name in sorted(have.keys() & want.keys()) if have[name] != want[name]]
    for name in differing[:_NAMED_MAX]:
        one, other = have[name], want[name]
        faults.append(
            f"has {name} as {one.dtype} {one.shape} ({tensor_bytes(one)} bytes), the version as "
            f"{other.dtype} {other.shape} ({tensor_bytes(other)} bytes)"
        )
    if len(differing) > _NAMED_MAX:
        faults.append(f"differs in {len(differing) - _NAMED_MAX} more")
    if faults:
        raise ManifestError(f"{what} {'; '.join(faults)}")


def read_checkpoint(folder: Path) -> dict[str, Place]:
    """Every tensor of a Hugging Face folder, by name, without reading its bytes.

    A whole file goes before an index, as with transformers: it leaves the index of former shards
    where it writes one file in their place.

    Raises:
        ManifestError: no safetensors file, a damaged one, or an index that names what is not there.
    """
    index = folder / INDEX
    if index.is_file() and not (folder / SINGLE).is_file():
        try:
            named = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except (msgspec.DecodeError, RecursionError) as error:
            raise ManifestError(f"{index} is no index of a checkpoint: {error}") from error
        files = sorted(set(named.values()))
        if outside := [file for file in files if Path(file).name != file]:
            raise ManifestError(f"{index} names {_some(outside)}, which lies in another folder")
    else:
        named, files = {}, [SINGLE]
    places: dict[str, Place] = {}
    for file in files:
        places |= {place.spec.name: place for place in read_header(folder / file)}
    if absent := sorted(named.keys() - places.keys()):
        raise ManifestError(f"{index} names {_some(absent)}, and no file has it")
    return {name: places[name] for name in sorted(named or places)}


def read_header(path: Path) -> list[Place]:
    """Tensors of one safetensors file.

    Raises:
        ManifestError: the file is missing or is no safetensors file.
    """
    header, start = read_json_header(path)
    size = path.stat().st_size
    places: list[Place] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            told = msgspec.convert(entry, _Entry)
        except msgspec.ValidationError as error:
            raise ManifestError(f"{name} in {path} cannot be read: {error}") from error
        begin, end = told.data_offsets
        if told.dtype not in DTYPES:
            raise ManifestError(f"{name} in {path} is {told.dtype}, which cannot be moved")
        spec = TensorSpec(name=name, dtype=DTYPES[told.dtype], shape=told.shape)
        if end - begin != tensor_bytes(spec) or start + end > size:
            raise ManifestError(
                f"{name} in {path} has offsets {begin} to {end}, its shape {spec.shape} needs "
                f"{tensor_bytes(spec)} bytes, the file has {size - start}"
            )
        places.append(Place(spec, path, start + begin))
    return places


def read_json_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its data begins.

    Raises:
        ManifestError: the file is missing or is no safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_BYTES_MAX:
                raise ManifestError(f"{path} is no safetensors file: a header of {length} bytes")
            header = msgspec.json.decode(file.read(length), type=dict)
    except FileNotFoundError as error:
        raise ManifestError(f"{path} does not exist") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ManifestError(f"{path} is no safetensors file: {error}") from error
    return header, 8 + length


class Layout:
    """Where each tensor lies in one block of memory.

    Args:
        specs: of the version.

    Attributes:
        offsets: by name; aligned, so that words can be read whole.
        total: bytes of the block.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.offsets: dict[str, int] = {}
        at = 0
        for name, spec in self.specs.items():
            self.offsets[name] = at
            at += -(-tensor_bytes(spec) // _ALIGNMENT) * _ALIGNMENT
        self.total = max(at, _ALIGNMENT)

    def nbytes(self, name: str) -> int:
        """Bytes of one tensor."""
        return tensor_bytes(self.specs[name])

    def itemsize(self, name: str) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.specs[name].dtype]


def digest_of(tensors: Iterable[tuple[str, memoryview]]) -> str:
    """xxh3-128 hex over name (UTF-8) and bytes of each tensor, in the order given."""
    hasher = xxhash.xxh3_128()
    for name, data in tensors:
        hasher.update(name.encode())
        hasher.update(data)
    return hasher.hexdigest()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
