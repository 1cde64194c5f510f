"""One example of every message type, made from its fields: for tests, docs and `milepost send`.

Every field is set, optional ones too; values are plain, small and always the same. A new message
type has its example without a line here.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import inspect

from milepost.messages import registry
from milepost.messages.bulk import Bulk
from milepost.messages.shared import Message


def example(kind: type[Message]) -> Message:
    """The example of this type.

    Raises:
        TypeError: a field has a type that no rule here covers.
    """
    return cast("Message", _struct(inspect.type_info(kind)))


def examples() -> tuple[Message, ...]:
    """One of every registered type, by name."""
    return tuple(example(one.type) for one in registry.registered())


def _struct(info: inspect.Type) -> Any:
    assert isinstance(info, inspect.StructType)
    values = {field.name: _value(field.type, field.name) for field in info.fields}
    return info.cls(**values)


def _value(info: inspect.Type, name: str) -> Any:
    """A value of this type, for a field of this name."""
    match info:
        case inspect.StructType():
            return _struct(info)
        case inspect.EnumType(cls=cls):
            return next(iter(cls))
        case inspect.CustomType(cls=cls) if cls is Bulk:
            return Bulk("int32", (3,), b"\x01\0\0\0\x02\0\0\0\x03\0\0\0")
        case inspect.UnionType(types=types):
            return _value(next(one for one in types if not isinstance(one, inspect.NoneType)), name)
        case inspect.TupleType(item_types=types):
            return tuple(_value(one, name) for one in types)
        case inspect.VarTupleType(item_type=one):
            return (_value(one, name),)
        case inspect.ListType(item_type=one):
            return [_value(one, name)]
        case inspect.DictType(value_type=one):
            return {"key": _value(one, name)}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.AnyType():
            return ["any", 1, None]
        case _:
            return _scalar(info, name)


def _scalar(info: inspect.Type, name: str) -> Any:
    match info:
        case inspect.BoolType():
            return True
        case inspect.IntType(ge=low):
            return max(1, low or 0)
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return name
        case inspect.BytesType():
            return b"\x01"
        case _:
            raise TypeError(f"no example for {name}: {info}, add a rule to {__name__}")


def as_json(message: Message) -> str:
    """A message as people read it; arrays as dtype, shape and size."""

    def plain(value: Any) -> Any:
        assert isinstance(value, Bulk)
        return {"dtype": value.dtype, "shape": value.shape, "bytes": value.nbytes}

    return msgspec.json.encode(message, enc_hook=plain).decode()
