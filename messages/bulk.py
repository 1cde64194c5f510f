"""Bulk data inside messages: a dtype, a shape and a raw buffer, never a list.

Messages import neither numpy nor torch. Actors turn a `Bulk` into an array without a copy
(`milepost.actors.arrays`), and the codec carries its buffer outside the message body.
"""

from __future__ import annotations

from math import prod
from typing import Final

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Every dtype that may travel, with its size in bytes. Little-endian, row-major."""


class Bulk:
    """One array as bytes.

    Args:
        dtype: a key of `ITEM_BYTES`.
        shape: non-negative sizes; `()` is a scalar.
        data: a contiguous readable buffer of exactly `prod(shape) * itemsize` bytes.

    Raises:
        ValueError: an unknown dtype, a negative size, or a buffer of another length.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> None:
        if dtype not in ITEM_BYTES:
            known = ", ".join(ITEM_BYTES)
            raise ValueError(f"unknown bulk dtype {dtype!r}, known are {known}")
        if shape and min(shape) < 0:
            raise ValueError(f"bulk shape {shape} has a negative size")
        view = memoryview(data).cast("B")
        num_items = shape[0] if len(shape) == 1 else prod(shape)
        expected = num_items * ITEM_BYTES[dtype]
        if view.nbytes != expected:
            raise ValueError(
                f"bulk of {dtype} {shape} needs {expected} bytes, the buffer has {view.nbytes}"
            )
        self.dtype = dtype
        self.shape = shape
        self.data = view

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return self.data.nbytes

    def __eq__(self, other: object) -> bool:
        """Equal when dtype, shape and every byte are."""
        if not isinstance(other, Bulk):
            return NotImplemented
        return (self.dtype, self.shape) == (other.dtype, other.shape) and self.data == other.data

    def __hash__(self) -> int:
        """Hash by dtype and shape; contents may be large."""
        return hash((self.dtype, self.shape))

    def __repr__(self) -> str:
        """Shape and size, never the contents."""
        return f"Bulk({self.dtype}, {self.shape}, {self.nbytes} bytes)"
