"""A plain document as one frozen `Topology`, or every reason why it is none.

The types in `milepost.configs` are the only description of what may be written. msgspec stops at
the first fault; this walk visits every field, so that a person sees all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from milepost.configs.problem import ConfigError, Problem
from milepost.configs.read import Document, merge, read_document
from milepost.configs.suggest import did_you_mean
from milepost.configs.topology import Topology

INTEGER_MAX: Final = 2**63 - 1
"""TOML's own bound; also what JSON readers and msgpack agree on."""


def load_topology(source: str, overrides: Sequence[str] = ()) -> Topology:
    """Read a topology: a recipe's name or a path, with `a.b=c` overrides, the later one wins.

    Raises:
        ConfigError: with every problem that can be found at once.
    """
    return decode(read_document(source, overrides))


def decode(document: Document) -> Topology:
    """Turn a plain document into a `Topology`.

    Raises:
        ConfigError: unknown keys, missing keys, values of a wrong type or out of their range.
    """
    if problems := list(_broken_texts(document, "$")):
        raise ConfigError(problems)  # whoever looks at them as text fails
    problems = list(_strange_values(document, "$"))
    resolved = _struct(Topology, document, "$", problems)
    if problems:
        raise ConfigError(problems)
    return msgspec.convert(resolved, Topology)


def _struct(kind: type[Struct], table: Document, where: str, problems: list[Problem]) -> Document:
    """Check one table, and complete the tables inside it with the defaults of this place."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    problems.extend(_unknown_key(key, where, fields) for key in table if key not in fields)
    resolved: Document = {}
    for name, field in fields.items():
        if name not in table:
            if field.required:
                remedy = f"add `{name} = ...` to it"
                problems.append(Problem(f"`{name}` is missing", where, remedy))
            continue
        value = table[name]
        shape = _shape(field.type)
        if shape.optional and value is False:
            continue
        if isinstance(field.default, Struct) and isinstance(value, dict):
            # A default that belongs to this place, as `restart` of an engine: what the user did
            # not write keeps it, and does not fall back to the class's own.
            value = merge(_written_out(field.default), value)
        resolved[name] = _value(field.type, shape, value, f"{where}.{name}", problems)
    return resolved


def _written_out(default: Struct) -> Document:
    """A default as a person would have written it; what is absent stays absent."""
    pairs = msgspec.to_builtins(default).items()
    return {key: value for key, value in pairs if value is not None}


def _value(
    annotation: Any, shape: _Shape, value: object, where: str, problems: list[Problem]
) -> object:
    name = where.rpartition(".")[2]
    if shape.struct is not None:
        if isinstance(value, dict):
            return _struct(shape.struct, value, where, problems)
        remedy = f"write it as [{where[2:]}]"
        problems.append(Problem(f"`{name}` is {_show(value)}, not a table", where, remedy))
    elif shape.struct_values is not None and isinstance(value, dict):
        kind = shape.struct_values
        return {
            key: _value(kind, _shape(kind), each, f"{where}.{key}", problems)
            for key, each in value.items()
        }
    else:
        try:
            msgspec.convert(value, annotation)
        except msgspec.ValidationError as error:
            problems.append(_wrong_value(name, value, where, shape, str(error)))
        else:
            if isinstance(value, str) and "\0" in value:
                # It ends a path or an argument for the system, and means nothing elsewhere.
                what = f"`{name}` is {value[:40]!a}, and holds a null character"
                problems.append(Problem(what, where, "leave it out"))
    return value


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a field's annotation comes to, as far as the walk cares."""

    struct: type[Struct] | None
    """It is a table of this class."""
    struct_values: type[Struct] | None
    """It is a table of tables of this class, under names of the user's own."""
    optional: bool
    """It is a table that may be absent."""
    choices: tuple[str, ...]
    """It is one of these words."""


@cache
def _shape(annotation: Any) -> _Shape:
    info = inspect.type_info(annotation)
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    struct = next((each.cls for each in members if isinstance(each, inspect.StructType)), None)
    values: type[Struct] | None = None
    choices: tuple[str, ...] = ()
    match info:
        case inspect.DictType(value_type=inspect.StructType(cls=values)):
            pass
        case inspect.LiteralType(values=words):
            choices = tuple(map(str, words))
        case inspect.EnumType(cls=enum):
            choices = tuple(_enum_words(enum))
        case _:
            pass
    return _Shape(struct, values, struct is not None and len(members) > 1, choices)


def _enum_words(enum: type[Enum]) -> Iterator[str]:
    for member in enum:
        yield str(member.value)


def _unknown_key(key: str, where: str, fields: Document) -> Problem:
    homes = [home for home in _homes(Topology, key, "$") if home != where]
    belongs = "it belongs to " + " or ".join(homes[:3])
    remedy = belongs if homes else did_you_mean(key, fields)
    return Problem(f"unknown key `{key}`", where, remedy)


def _homes(kind: type[Struct], key: str, where: str) -> Iterator[str]:
    """Paths of every table that does have a key of this name."""
    for field in msgspec.structs.fields(kind):
        if field.name == key:
            yield where
        struct = _shape(field.type).struct
        if struct is not None:
            yield from _homes(struct, key, f"{where}.{field.name}")


def _wrong_value(name: str, value: object, where: str, shape: _Shape, error: str) -> Problem:
    if shape.choices and isinstance(value, str):
        words = ", ".join(f'"{word}"' for word in shape.choices)
        what = f"`{name}` is {_show(value)}, not one of {words}"
        return Problem(what, where, did_you_mean(value, shape.choices))
    reason, _, inner = error.partition(" - at `$")
    what = f"`{name}` is {_show(value)}: {reason[:1].lower()}{reason[1:]}"
    remedy = ""
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        remedy = f"TOML writes {value.lower()}, without quotes"
    return Problem(what, where + inner.rstrip("`"), remedy)


def _strange_values(value: object, where: str) -> Iterator[Problem]:
    """Values that TOML can write and a run cannot carry to its processes unchanged."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _strange_values(each, f"{where}.{key}")
        case list():
            for index, each in enumerate(value):
                yield from _strange_values(each, f"{where}[{index}]")
        case float() if not math.isfinite(value):
            yield Problem(f"{value} is not a finite number", where)
        case int() if abs(value) > INTEGER_MAX:
            yield Problem(f"{value} needs more than 64 bits", where)
        case bool() | int() | float() | str() | NoneType():
            pass
        case _:
            yield Problem(f"{value} is a date or time", where, "write it as a string")


def _broken_texts(value: object, where: str) -> Iterator[Problem]:
    """Words of a command line that were no UTF-8."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _broken_texts(key, where)
                yield from _broken_texts(each, f"{where}.{key}")
        case list():
            for index, each in enumerate(value):
                yield from _broken_texts(each, f"{where}[{index}]")
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            told = ascii(value[:40])
            yield Problem(f"{told} is not text", where, "write it in UTF-8")


def _show(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    if isinstance(value, dict):
        text = "a table"
    return text if len(text) <= 60 else text[:57] + "..."
