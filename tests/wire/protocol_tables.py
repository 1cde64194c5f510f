"""The generated parts of docs/protocol.md; `make docs` writes them (see tests/docs_tables.py)."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, Final

import msgspec
from msgspec import Struct

from milepost.messages import registry, shared, trajectory
from milepost.messages.bulk import ITEM_BYTES, Bulk
from milepost.messages.bus.delivery import Delivery, Kind
from milepost.messages.envelope import PROTOCOL, Header
from milepost.messages.examples import as_json, example
from milepost.messages.limits import BusLimits
from milepost.messages.shared import Message

SINCE: Final[dict[str, tuple[int, int]]] = {}
"""Message types that came after 1.0, with the version that brought them."""


EXAMPLE_MAX: Final = 600
"""Longer ones do not help a reader."""


def version() -> Iterator[str]:
    """The one line that says which version this page describes."""
    yield f"This page describes protocol **{PROTOCOL[0]}.{PROTOCOL[1]}**."


def header() -> Iterator[str]:
    yield from _positions(Header)


def delivery() -> Iterator[str]:
    yield from _positions(Delivery)


def kinds() -> Iterator[str]:
    notes = _notes(Kind)
    yield "| number | kind | |"
    yield "| --- | --- | --- |"
    for kind in Kind:
        yield f"| {kind.value} | {kind.name} | {notes.get(kind.name, '')} |"


def limits() -> Iterator[str]:
    notes = _notes(BusLimits)
    yield "| limit | default | |"
    yield "| --- | --- | --- |"
    for field in dataclasses.fields(BusLimits):
        yield f"| `{field.name}` | {field.default:,} | {notes.get(field.name, '')} |"


def dtypes() -> Iterator[str]:
    yield "| dtype | bytes |"
    yield "| --- | --- |"
    for name, size in ITEM_BYTES.items():
        yield f"| `{name}` | {size} |"


def messages() -> Iterator[str]:
    """Every message type, by the module of its receiver."""
    for module in registry.MODULES:
        yield f"### {_receiver(module)}"
        yield ""
        yield _text(module)
        yield ""
        for kind in registry.messages_in(module):
            yield from _message(kind)


def _receiver(module: ModuleType) -> str:
    name = module.__name__.rpartition(".")[2]
    return {"control": "To anybody"}.get(name, f"In messages/{name}.py")


def _message(kind: type[Message]) -> Iterator[str]:
    major, minor = SINCE.get(kind.__name__, (1, 0))
    yield f"#### {kind.__name__}"
    yield ""
    yield f"{_text(kind)} *Since {major}.{minor}.*"
    yield ""
    yield from _fields(kind)
    text = as_json(example(kind))
    if len(text) <= EXAMPLE_MAX:
        yield f"Example: `{text}`"
        yield ""


def structs() -> Iterator[str]:
    """The named pieces that fields are made of."""
    for struct in _pieces():
        yield f"#### {struct.__name__}"
        yield ""
        array = ", an array in this order" if struct.__struct_config__.array_like else ""
        yield f"{_text(struct)}{f' Sent as{array[1:]}.' if array else ''}"
        yield ""
        yield from _fields(struct)


def enums() -> Iterator[str]:
    """The named values of fields."""
    yield "| type | name | value | |"
    yield "| --- | --- | --- | --- |"
    for enum in _enums():
        notes = _notes(enum)
        for member in enum:
            note = notes.get(member.name, "")
            yield f"| {enum.__name__} | {member.name} | `{member.value}` | {note} |"


def _modules() -> tuple[ModuleType, ...]:
    return (shared, trajectory, *registry.MODULES)


def _pieces() -> Iterator[type[Struct]]:
    for module in _modules():
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Struct)
                and not issubclass(value, Message)
                and value.__module__ == module.__name__
            ):
                yield value


def _enums() -> Iterator[type[Enum]]:
    for module in _modules():
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Enum)
                and value.__module__ == module.__name__
            ):
                yield value


def _fields(struct: type[Struct]) -> Iterator[str]:
    notes = _notes(struct)
    fields = msgspec.structs.fields(struct)
    if not fields:
        yield "No fields."
        yield ""
        return
    yield "| field | type | default | |"
    yield "| --- | --- | --- | --- |"
    for field in fields:
        default = "required" if field.required else f"`{_default(field)}`"
        words = _words(msgspec.inspect.type_info(field.type))
        yield f"| `{field.encode_name}` | {words} | {default} | {notes.get(field.name, '')} |"
    yield ""


def _positions(struct: type[Struct]) -> Iterator[str]:
    notes = _notes(struct)
    yield "| position | field | type | |"
    yield "| --- | --- | --- | --- |"
    for position, field in enumerate(msgspec.structs.fields(struct)):
        words = _words(msgspec.inspect.type_info(field.type))
        yield f"| {position} | {field.name} | {words} | {notes.get(field.name, '')} |"


def _default(field: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(value).decode() if not isinstance(value, Enum) else value.value


def _words(info: Any) -> str:
    """A type as people read it."""
    match info:
        case msgspec.inspect.StructType(cls=cls) | msgspec.inspect.EnumType(cls=cls):
            return (
                f"[{cls.__name__}](#{cls.__name__.lower()})"
                if issubclass(cls, Struct)
                else cls.__name__
            )
        case msgspec.inspect.CustomType(cls=cls) if cls is Bulk:
            return "[array](#arrays)"
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_words(one) for one in types)
        case msgspec.inspect.VarTupleType(item_type=one) | msgspec.inspect.ListType(item_type=one):
            return f"list of {_words(one)}"
        case msgspec.inspect.TupleType(item_types=types):
            return f"({', '.join(_words(one) for one in types)})"
        case msgspec.inspect.DictType(value_type=one):
            return f"map of {_words(one)}"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case _:
            return _scalar(info)


def _scalar(info: Any) -> str:
    match info:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            name = "integer" if isinstance(info, msgspec.inspect.IntType) else "number"
            highest = info.le if info.le is None or info.le < 1 << 62 else None
            bounds = [(">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", highest)]
            if info.le is not None and info.le > 1e300:
                return "finite number"
            return " ".join([name, *(f"{sign} {at}" for sign, at in bounds if at is not None)])
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.StrType():
            return "string"
        case msgspec.inspect.BytesType():
            return "bytes"
        case msgspec.inspect.NoneType():
            return "nil"
        case msgspec.inspect.AnyType():
            return "any JSON value"
        case _:
            raise AssertionError(f"no words for {info}, add a rule to {__name__}")


def _text(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _notes(kind: type) -> dict[str, str]:
    """The strings below fields and members, as the source has them."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, node in zip(body.body, body.body[1:], strict=False):
        match before, node:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split()).replace("|", "\\|")
            case _:
                pass
    return found


TABLES: Final = {
    ("protocol.md", "version"): version,
    ("protocol.md", "delivery"): delivery,
    ("protocol.md", "kinds"): kinds,
    ("protocol.md", "header"): header,
    ("protocol.md", "dtypes"): dtypes,
    ("protocol.md", "limits"): limits,
    ("protocol.md", "messages"): messages,
    ("protocol.md", "structs"): structs,
    ("protocol.md", "enums"): enums,
}
"""(page, name of the place in it) -> what writes it."""
