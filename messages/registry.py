"""Every message type by its name on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import ModuleType
from typing import Final

import msgspec

from milepost.messages import (
    agent,
    buffer,
    control,
    engine,
    evaluator,
    guests,
    publisher,
    rollout,
    session,
    supervisor,
    trainer,
)
from milepost.messages.bulk import Bulk
from milepost.messages.shared import Message

MODULES: Final[tuple[ModuleType, ...]] = (
    agent,
    buffer,
    control,
    engine,
    evaluator,
    guests,
    publisher,
    rollout,
    session,
    supervisor,
    trainer,
)
"""One for each receiver; `control` is what any receiver may answer."""


class Registered(msgspec.Struct, frozen=True):
    """A message type and what the codec has to know of it."""

    name: str
    type: type[Message]
    has_bulk: bool
    """Some field of it, at any depth, is a `Bulk`."""
    is_closed: bool
    """The type of every value in it, at any depth, is known before it is read."""


def _parts(kind: msgspec.inspect.Type, seen: set[type]) -> Iterator[msgspec.inspect.Type]:
    """The types at the ends of this one, each struct looked into once.

    A dict with other keys than strings is an end itself: only reading it tells what it holds.
    """
    inner: Iterable[msgspec.inspect.Type]
    match kind:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            inner = () if cls in seen else [field.type for field in fields]
            seen.add(cls)
        case msgspec.inspect.UnionType(types=types):
            inner = types
        case msgspec.inspect.TupleType(item_types=types):
            inner = types
        case msgspec.inspect.ListType(item_type=one) | msgspec.inspect.VarTupleType(item_type=one):
            inner = [one]
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            inner = [value]
            if not isinstance(key, msgspec.inspect.StrType):
                yield kind
        case _:
            yield kind
            return
    for one in inner:
        yield from _parts(one, seen)


def _is_bulk(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.CustomType) and kind.cls is Bulk


_LEAVES: Final = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.FloatType,
    msgspec.inspect.StrType,
    msgspec.inspect.BytesType,
    msgspec.inspect.EnumType,
    msgspec.inspect.LiteralType,
)


_types: dict[str, type[Message]] = {}
_by_name: dict[str, Registered] = {}
"""What was asked for once: looking into the fields of all types would cost every process 40 ms."""


def register(*types: type[Message]) -> None:
    """Let further message types travel (actors of the user's own). Once for each type.

    Raises:
        ValueError: another type has this name already.
    """
    for kind in types:
        known = _types.setdefault(kind.__name__, kind)
        if known is not kind:
            raise ValueError(
                f"two message types are called {kind.__name__}: "
                f"{known.__module__} and {kind.__module__}, rename one of them"
            )


def find(name: str) -> Registered | None:
    """The type of this name, or None."""
    known = _by_name.get(name)
    if known is None and name in _types:
        kind = _types[name]
        parts = tuple(_parts(msgspec.inspect.type_info(kind), set()))
        known = _by_name[name] = Registered(
            name=name,
            type=kind,
            has_bulk=any(map(_is_bulk, parts)),
            is_closed=all(_is_bulk(part) or isinstance(part, _LEAVES) for part in parts),
        )
    return known


def registered() -> tuple[Registered, ...]:
    """All types, by name."""
    found = (find(name) for name in sorted(_types))
    return tuple(one for one in found if one is not None)


def of(message: Message) -> Registered:
    """The registration of this message's type.

    Raises:
        TypeError: its type was never registered.
    """
    kind = type(message)
    known = _by_name.get(kind.__name__) or find(kind.__name__)
    if known is None or known.type is not kind:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} is no registered message type, "
            f"call milepost.messages.registry.register({kind.__name__}) beside its class"
        )
    return known


def nearest(name: str) -> str:
    """The known type name most like this one, or an empty string."""
    return next(iter(get_close_matches(name, _types, n=1)), "")


def messages_in(module: ModuleType) -> tuple[type[Message], ...]:
    """The message types defined in this module, in order of definition."""
    found = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Message)
        and value.__module__ == module.__name__
    )
    return tuple(dict.fromkeys(found))


for _module in MODULES:
    register(*messages_in(_module))
