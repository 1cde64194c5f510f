"""Between `Bulk` (what travels) and NumPy arrays (what actors compute with), without a copy."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.messages.bulk import ITEM_BYTES, Bulk

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES = {
    name: np.dtype("<u2" if name == "bfloat16" else name).newbyteorder("<") for name in ITEM_BYTES
}
"""NumPy has no bfloat16: its bits travel through `uint16` views."""


@lru_cache(maxsize=64)
def _name_of(dtype: np.dtype[Any]) -> str:
    """As it travels; NumPy makes the name of a dtype up anew each time it is asked.

    Raises:
        ValueError: it is not little-endian.
    """
    if dtype != dtype.newbyteorder("<"):
        raise ValueError(f"array of dtype {dtype.str} is not little-endian, convert it first")
    return dtype.name


def to_bulk(array: NDArray[Any], dtype: str | None = None) -> Bulk:
    """Wrap a C-contiguous array; the buffer is shared, so do not write to it afterwards.

    Args:
        array: any shape, C-contiguous, little-endian.
        dtype: name on the wire when it differs from the array's (`bfloat16` held as uint16).

    Raises:
        ValueError: the array is not contiguous or not little-endian, or its dtype cannot travel.
    """
    name = _name_of(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError(f"array of shape {array.shape} is not C-contiguous, copy it first")
    return Bulk(dtype or name, array.shape, array.data if array.size else b"")


def from_bulk(bulk: Bulk) -> NDArray[Any]:
    """A read-only view of the buffer with the bulk's dtype and shape; bfloat16 comes as uint16."""
    array: NDArray[Any] = np.frombuffer(bulk.data, dtype=_DTYPES[bulk.dtype])
    if len(bulk.shape) != 1:
        array = array.reshape(bulk.shape)
    if not bulk.data.readonly:
        array.flags.writeable = False
    return array
