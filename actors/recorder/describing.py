"""What the recorder keeps of a message beside its digest: ids and small numbers.

Runs for every event and effect of every actor, so how to read a type is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

from msgspec import inspect

from milepost.actors.recorder.lines import Facts
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
_OWN_MODULES: Final = frozenset(module.__name__ for module in registry.MODULES)
"""Types of the user's own are not known to whoever reads a recording."""


def facts_of(message: Message) -> Facts:
    """Ids and small numbers, by field."""
    return _plan_of(type(message)).facts(message)


def values_of(message: Message) -> Any:
    """The same without the names, where every reader knows them (`names_of`); else with them."""
    plan = _plans.get(type(message)) or _plan_of(type(message))
    return plan.values(message)


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
        names: of the plain ones.
        values: reads them, as far as no more than these make up the facts.
    """

    __slots__ = ("_has_more", "_lists", "_nested", "_read", "_texts", "names", "values")

    def __init__(self, kind: type[Message]) -> None:
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType), kind
        plain: list[str] = []
        self._texts: list[str] = []
        self._lists: list[str] = []
        self._nested: list[tuple[str, bool, tuple[str, ...]]] = []
        for field in info.fields:
            place = _place_of(field.name, field.type)
            if place:
                {"plain": plain, "text": self._texts, "list": self._lists}[place].append(field.name)
            names, is_one = _named_within(field.type)
            if names:
                self._nested.append((field.name, is_one, names))
        self.names = tuple(plain)
        self._read = _reader(plain)
        self._has_more = bool(self._texts or self._lists or self._nested)
        is_plain = not self._has_more and kind.__module__ in _OWN_MODULES
        self.values: Callable[[Message], Any] = self._read if is_plain else self.facts

    def facts(self, message: Message) -> Facts:
        """Of one message of this type."""
        # The reader gives a value for each name; being asked to make sure costs as much again.
        facts: Facts = dict(zip(self.names, self._read(message)))  # noqa: B905
        return self._with_more(facts, message) if self._has_more else facts

    def _with_more(self, facts: Facts, message: Message) -> Facts:
        for name in self._texts:
            text = getattr(message, name)
            if text:
                facts[name] = text[:TEXT_CHARACTERS_MAX]
        for name in self._lists:
            facts[name] = list(getattr(message, name))[:IDS_MAX]
        for name, is_one, names in self._nested:
            value = getattr(message, name)
            if value:
                _add_names(facts, (value,) if is_one else value, names)
        return facts


_plans: Final[dict[type, _Plan]] = {}


def _place_of(name: str, kind: inspect.Type) -> str:
    """What a field is to the recorder: `plain`, `text`, `list`, or nothing."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        match each:
            case inspect.IntType() | inspect.FloatType() | inspect.BoolType():
                return "plain"
            case inspect.EnumType():
                return "plain"
            case inspect.StrType():
                return "plain" if name.endswith("_id") else "text" if name in TEXTS else ""
            case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
                is_names = isinstance(item, inspect.StrType) and name.endswith("_ids")
                return "list" if is_names else ""
            case _:
                pass
    return ""


def _reader(names: list[str]) -> Callable[[Message], tuple[Any, ...]]:
    match names:
        case []:
            return lambda _message: ()
        case [name]:
            one = attrgetter(name)
            return lambda message: (one(message),)
        case _:
            return attrgetter(*names)


def _named_within(kind: inspect.Type) -> tuple[tuple[str, ...], bool]:
    """Which of `NAMES` the structs in this field have, and whether it holds one struct alone."""
    match kind:
        case inspect.StructType(fields=fields):
            known = {field.name for field in fields}
            return tuple(name for name in NAMES if name in known), True
        case inspect.VarTupleType(item_type=inspect.StructType() as item):
            return _named_within(item)[0], False
        case inspect.ListType(item_type=inspect.StructType() as item):
            return _named_within(item)[0], False
        case _:
            return (), False


def _add_names(facts: Facts, values: Iterable[Any], names: tuple[str, ...]) -> None:
    for name in names:
        found = dict.fromkeys(getattr(each, name) for each in values)
        known = facts.setdefault(f"{name}s", [])
        known += [each for each in found if each not in known][: IDS_MAX - len(known)]
