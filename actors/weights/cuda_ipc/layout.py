"""Where each tensor of a version lies in one piece of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

from milepost.messages.bulk import ITEM_BYTES
from milepost.messages.engine import TensorSpec

ALIGNMENT: Final = 256
"""Bytes between possible beginnings: what kernels that load whole vectors need, with room."""


def num_bytes_of(spec: TensorSpec) -> int:
    """Of the tensor, without padding."""
    return prod(spec.shape) * ITEM_BYTES[spec.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors one behind the other.

    Attributes:
        specs: in their order in memory.
        offsets: where each begins, in bytes.
        num_bytes: of all, at least 1.
    """

    specs: dict[str, TensorSpec]
    offsets: dict[str, int]
    num_bytes: int

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Layout:
        """In this order, each aligned to `ALIGNMENT`."""
        ordered = {spec.name: spec for spec in specs}
        offsets, end = {}, 0
        for name, spec in ordered.items():
            offsets[name] = end
            end += -(-num_bytes_of(spec) // ALIGNMENT) * ALIGNMENT
        return cls(ordered, offsets, max(end, 1))


def outside(spec: TensorSpec, offset: int, num_bytes: int) -> str:
    """Why a tensor cannot lie there in memory of `num_bytes`; empty when it can."""
    end = offset + num_bytes_of(spec)
    if end > num_bytes:
        return f"{spec.name} ends at byte {end}, the memory has {num_bytes}"
    if offset % ITEM_BYTES[spec.dtype]:
        return f"{spec.name} begins at byte {offset}, in the middle of a {spec.dtype}"
    return ""
