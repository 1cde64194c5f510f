"""Between `Bulk` (what travels) and NumPy arrays (what actors compute with), without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.messages.bulk import Bulk

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STORAGE = {"bfloat16": np.dtype("<u2")}
"""NumPy has no bfloat16: its bits travel through `uint16` views."""


def to_bulk(array: NDArray[Any], dtype: str | None = None) -> Bulk:
    """Wrap a C-contiguous array; the buffer is shared, so do not write to it afterwards.

    Args:
        array: any shape, C-contiguous, little-endian.
        dtype: name on the wire when it differs from the array's (`bfloat16` held as uint16).

    Raises:
        ValueError: the array is not contiguous or not little-endian, or its dtype cannot travel.
    """
    if array.dtype != array.dtype.newbyteorder("<"):
        raise ValueError(f"array of dtype {array.dtype.str} is not little-endian, convert it first")
    if not array.flags.c_contiguous:
        raise ValueError(f"array of shape {array.shape} is not C-contiguous, copy it first")
    name = dtype or array.dtype.name
    flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    return Bulk(name, array.shape, flat.data)


def from_bulk(bulk: Bulk) -> NDArray[Any]:
    """A read-only view of the buffer with the bulk's dtype and shape; bfloat16 comes as uint16."""
    dtype = _STORAGE[bulk.dtype] if bulk.dtype in _STORAGE else np.dtype(bulk.dtype)
    array = np.frombuffer(bulk.data, dtype=dtype).reshape(bulk.shape)
    array.flags.writeable = False
    return array
