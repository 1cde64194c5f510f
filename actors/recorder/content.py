"""Any event or effect as bytes and back, for recordings that are replayed.

Messages, results of work and orders are structs, dataclasses, enums, arrays and plain values;
each keeps its type by name. No pickle: reading makes only structs, dataclasses and enums of this
package, by their own constructors, and runs nothing that the bytes say.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from importlib import import_module
from pathlib import PurePath
from typing import Any, Final

import msgspec
import xxhash

from milepost.messages.bulk import ITEM_BYTES, Bulk
from milepost.messages.engine import WeightBucket
from milepost.messages.publisher import BucketReady

OURS: Final = "milepost."
DEPTH_MAX: Final = 40
INT_MIN: Final = -(1 << 63)
INT_END: Final = 1 << 64
WEIGHTS: Final[frozenset[type]] = frozenset({WeightBucket, BucketReady})
"""Their arrays count by dtype and shape: checkpoints hold what is in them."""
_encoder: Final = msgspec.msgpack.Encoder()


class NotRecordable(TypeError):
    """A value of a type that no recording holds."""


def content_of(value: object) -> bytes:
    """The value as bytes; equal values give equal bytes.

    Raises:
        NotRecordable: some part of it is no plain data.
    """
    return _encoder.encode(_plain(value, opaque=False))


def digest_of_content(value: object) -> int:
    """xxh3-64 of the value; what is no plain data counts by the name of its type. Never 0."""
    return address_of(_encoder.encode(_plain(value, opaque=True)))


def address_of(content: bytes) -> int:
    """Under which content is kept; never 0."""
    return xxhash.xxh3_64_intdigest(content) or 1


def value_of(content: bytes) -> Any:
    """The value of these bytes.

    Raises:
        NotRecordable: they name a type that is no plain data of ours.
        ValueError, TypeError: they were written by another commit.
    """
    return _value(msgspec.msgpack.decode(content))


# ---- out ---------------------------------------------------------------------------------


def _plain(value: Any, *, opaque: bool, hollow: bool = False, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        # A tree whose nodes know their parents has no end.
        return _opaque(value, allowed=opaque)

    def parts(values: Any) -> list[Any]:
        return [_plain(each, opaque=opaque, hollow=hollow, depth=depth + 1) for each in values]

    match value:
        case Enum():
            return ["enum", _name(type(value)), value.value]
        case None | bool() | float() | str() | bytes():
            return value
        case int():
            # A client's JSON may hold any number, msgpack has 64 bits.
            return value if INT_MIN <= value < INT_END else ["int", f"{value:x}"]
        case list():
            return ["list", *parts(value)]
        case tuple():
            return ["tuple", *parts(value)]
        case dict():
            return ["dict", *([*parts(pair)] for pair in value.items())]
        case set() | frozenset():
            # In one order: a set has none of its own.
            return [type(value).__name__, *sorted(parts(value), key=repr)]
        case Bulk():
            told = ["bulk", value.dtype, value.shape]
            return told if hollow else [*told, bytes(value.data)]
        case msgspec.Struct():
            within = hollow or type(value) in WEIGHTS
            fields = {
                name: _plain(getattr(value, name), opaque=opaque, hollow=within, depth=depth + 1)
                for name in value.__struct_fields__
            }
            return ["struct", _name(type(value)), fields]
        case PurePath():
            return ["path", str(value)]
    if type(value).__module__ == "numpy":
        return _plain_array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told_fields = dataclasses.fields(value)
        if opaque or all(each.init for each in told_fields):
            values = parts(getattr(value, each.name) for each in told_fields)
            names = [each.name for each in told_fields]
            return ["dataclass", _name(type(value)), dict(zip(names, values, strict=True))]
    return _opaque(value, allowed=opaque)


def _opaque(value: object, *, allowed: bool) -> list[str]:
    if not allowed:
        raise NotRecordable(f"a {_name(type(value))} is no plain data")
    return ["opaque", _name(type(value))]


def _plain_array(value: Any) -> list[Any]:
    return ["array", value.dtype.str, list(value.shape), value.tobytes()]


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


# ---- back --------------------------------------------------------------------------------


def _value(plain: Any) -> Any:
    match plain:
        case ["list", *parts]:
            return [_value(each) for each in parts]
        case ["tuple", *parts]:
            return tuple(_value(each) for each in parts)
        case ["dict", *pairs]:
            return {_value(key): _value(each) for key, each in pairs}
        case ["set", *parts]:
            return {_value(each) for each in parts}
        case ["frozenset", *parts]:
            return frozenset(_value(each) for each in parts)
        case ["enum", name, value]:
            return _kind(name)(value)
        case ["struct" | "dataclass", name, fields]:
            return _kind(name)(**{field: _value(each) for field, each in fields.items()})
        case ["bulk", dtype, shape]:
            size = ITEM_BYTES[dtype]
            for each in shape:
                size *= each
            return Bulk(dtype, tuple(shape), bytes(size))
        case ["bulk", dtype, shape, data]:
            return Bulk(dtype, tuple(shape), data)
        case ["array", dtype, shape, data]:
            return _array(dtype, shape, data)
        case ["int", digits]:
            return int(digits, 16)
        case ["path", path]:
            return import_module("pathlib").Path(path)
        case [kind, *_]:
            raise NotRecordable(f"no value is of kind {kind!r:.40}")
        case _:
            return plain


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    # The supervisor's side reads recordings, too, and never loads numpy.
    numpy = import_module("numpy")
    array = numpy.frombuffer(data, dtype=dtype).reshape(shape)
    return array if shape else array[()]


def _kind(name: str) -> Any:
    module, _, path = name.partition(":")
    if not module.startswith(OURS):
        raise NotRecordable(f"{name} is no type of ours")
    kind: Any = import_module(module)
    for part in path.split("."):
        kind = getattr(kind, part)
    if not isinstance(kind, type) or not (
        issubclass(kind, msgspec.Struct | Enum) or dataclasses.is_dataclass(kind)
    ):
        raise NotRecordable(f"{name} is no plain data")
    return kind
