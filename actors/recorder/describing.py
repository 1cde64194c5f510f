"""What the recorder keeps of a message beside its digest: ids and small numbers.

Runs for every event and effect of every actor, so how to read a type is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from milepost.actors.recorder.lines import Facts, named
from milepost.messages import registry
from milepost.messages.shared import Message

IDS_MAX: Final = 64
"""In one list of names."""
TEXT_CHARACTERS_MAX: Final = 120
TEXTS: Final = frozenset(
    {
        "actor",
        "agent",
        "cause",
        "engine",
        "guard",
        "holder",
        "kind",
        "limit",
        "reason",
        "report_to",
    }
)
"""Fields of text worth reading. Others may be long, or hold the key of a door."""
NAMES: Final = ("trajectory_id", "group_id")
"""Taken from structs inside of a message, too."""
_NUMBERS: Final = frozenset({int, float, bool})
_UNIONS: Final = (UnionType, Union)
_OWN_MODULES: Final = frozenset(module.__name__ for module in registry.MODULES)
"""Types of the user's own are not known to whoever reads a recording."""


def facts_of(message: Message) -> Facts:
    """Ids and small numbers, by field."""
    plan = _plan_of(type(message))
    values = (list(each) if type(each) is tuple else each for each in plan.values(message))
    return named(plan.names, values)


def reader_of(kind: type[Message]) -> Callable[[Any], Any]:
    """What reads the same without the names, where all know them (`names_of`); else with them."""
    plan = _plan_of(kind)
    return plan.values if plan.is_own else facts_of


def names_of(kind: str) -> tuple[str, ...]:
    """Names of the values of a type of message; none if it is not one of this package."""
    known = registry.find(kind)
    if known is None or known.type.__module__ not in _OWN_MODULES:
        return ()
    return _plan_of(known.type).names


def _plan_of(kind: type[Message]) -> _Plan:
    plan = _plans.get(kind)
    if plan is None:
        plan = _plans[kind] = _Plan(kind)
    return plan


class _Plan:
    """How the facts of one type of message are read.

    Attributes:
        names: of its values.
        values: reads them.
        is_own: every reader knows the names.
    """

    __slots__ = ("is_own", "names", "values")

    def __init__(self, kind: type[Message]) -> None:
        # Four times as fast as `msgspec.inspect`, which looks into every struct within.
        hints = get_type_hints(kind)
        found: dict[str, list[str]] = {"plain": [], "text": [], "list": []}
        within: dict[str, list[tuple[str, bool]]] = {}
        for field in kind.__struct_fields__:
            place = _place_of(field, hints[field])
            if place:
                found[place].append(field)
            names, is_one = _named_within(hints[field])
            for name in names:
                within.setdefault(name, []).append((field, is_one))
        own = [name for name in found["list"] if name.removesuffix("s") in within]
        lists = [name for name in found["list"] if name not in own]
        direct = [*found["plain"], *found["text"], *lists]
        bounds = [
            *((direct.index(name), TEXT_CHARACTERS_MAX) for name in found["text"]),
            *((direct.index(name), IDS_MAX) for name in lists),
        ]
        self.names = (*direct, *(f"{name}s" for name in within))
        self.is_own = kind.__module__ in _OWN_MODULES
        self.values: Callable[[Any], tuple[Any, ...]] = _reader(direct)
        if bounds:
            self.values = _bounded(self.values, bounds)
        if within:
            self.values = _with_names_within(self.values, own, within)


def _bounded(
    read: Callable[[Any], tuple[Any, ...]], bounds: list[tuple[int, int]]
) -> Callable[[Any], tuple[Any, ...]]:
    """The same with no text or list longer than allowed at its place."""
    (first, first_max), *others = bounds

    def values(message: Any) -> tuple[Any, ...]:
        found = read(message)
        value = found[first]
        if value and len(value) > first_max:
            found = (*found[:first], value[:first_max], *found[first + 1 :])
        for place, most in others:
            value = found[place]
            if value and len(value) > most:
                found = (*found[:place], value[:most], *found[place + 1 :])
        return found

    return values


def _with_names_within(
    read: Callable[[Any], tuple[Any, ...]],
    own: list[str],
    within: dict[str, list[tuple[str, bool]]],
) -> Callable[[Any], tuple[Any, ...]]:
    """The same with a list for each of these names, from structs in these fields."""
    singles = [f"{field}.{name}" for name, fields in within.items() for field, one in fields if one]
    several = _reader(
        [*own, *dict.fromkeys(f for each in within.values() for f, one in each if not one)]
    )
    # A message of one struct, and no other in its lists: each name once, in one look.
    look = _reader(singles) if len(singles) == len(within) else None

    def values(message: Any) -> tuple[Any, ...]:
        if look is not None and not any(several(message)):
            return read(message) + tuple([[name] for name in look(message)])
        return read(message) + tuple(
            [_names_in(message, name, own, fields) for name, fields in within.items()]
        )

    return values


def _names_in(
    message: Any, name: str, own: list[str], fields: Iterable[tuple[str, bool]]
) -> list[str]:
    """Each once: those in a list of the message's own, and those in structs of these fields."""
    found: list[str] = list(getattr(message, f"{name}s")) if f"{name}s" in own else []
    name_of = attrgetter(name)
    for field, is_one in fields:
        value = getattr(message, field)
        if is_one:
            found.append(name_of(value))
        elif value:
            found += map(name_of, value)
    return list(dict.fromkeys(found))[:IDS_MAX]


_plans: Final[dict[type, _Plan]] = {}


def _place_of(name: str, kind: Any) -> str:
    """What a field is to the recorder: `plain`, `text`, `list`, or nothing."""
    for each in get_args(kind) if get_origin(kind) in _UNIONS else (kind,):
        if each in _NUMBERS or (isinstance(each, type) and issubclass(each, Enum)):
            return "plain"
        if each is str:
            return "plain" if name.endswith("_id") else "text" if name in TEXTS else ""
        if (item := _item_of(each)) is not None:
            return "list" if item is str and name.endswith("_ids") else ""
    return ""


def _item_of(kind: Any) -> Any:
    """What a list holds; None of what is no list."""
    match get_origin(kind), get_args(kind):
        case origin, (item,) if origin is list:
            return item
        case origin, (item, more) if origin is tuple and more is Ellipsis:
            return item
        case _:
            return None


def _reader(names: list[str]) -> Callable[[Message], tuple[Any, ...]]:
    match names:
        case []:
            return lambda _message: ()
        case [name]:
            one = attrgetter(name)
            return lambda message: (one(message),)
        case _:
            return attrgetter(*names)


def _named_within(kind: Any) -> tuple[tuple[str, ...], bool]:
    """Which of `NAMES` the structs in this field have, and whether it holds one struct alone."""
    item = _item_of(kind)
    struct = kind if item is None else item
    if not isinstance(struct, type) or not issubclass(struct, Struct):
        return (), False
    return tuple(name for name in NAMES if name in struct.__struct_fields__), item is None
