"""Arrays inside of records that lie on a disk, for msgspec's hooks: dtype, shape and bytes."""

from __future__ import annotations

from typing import Any

from milepost.messages.bulk import Bulk


def encode_bulk(value: Any) -> dict[str, Any]:
    """A `Bulk` as plain values; its bytes are not copied.

    Raises:
        TypeError: it is something else, which has no place in a record.
    """
    if isinstance(value, Bulk):
        return {"dtype": value.dtype, "shape": value.shape, "data": value.data}
    raise TypeError(f"no record can hold a {type(value).__name__}")


def decode_bulk(kind: type, value: Any) -> Bulk:
    """The `Bulk` again.

    Raises:
        TypeError: a record has a field of another type that needs help.
    """
    if kind is Bulk:
        return Bulk(value["dtype"], tuple(value["shape"]), value["data"])
    raise TypeError(f"no record can hold a {kind.__name__}")
