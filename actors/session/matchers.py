"""When a replayed message is the stored one.

A client sends the whole history each turn; the matcher decides how exactly it must repeat what the
session holds. The stored spelling is kept, and never are tokens made of the replayed one.

strict is contained in loose_tool_call, and that in role_content_only.
"""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from milepost.actors.session.foreign import ForeignFault, called
from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from milepost.messages.shared import ChatMessage

Matcher: TypeAlias = Callable[["ChatMessage", "ChatMessage"], bool]
"""(stored, replayed) -> whether they are one message. Must not change them."""

COMPARED: Final = ("role", "content", "reasoning_content", "tool_calls")


def strict(stored: ChatMessage, replayed: ChatMessage) -> bool:
    """Equal role, content, reasoning and tool calls; only a call's `index` is ignored."""
    return stored == replayed or first_difference(stored, replayed) is None


def loose_tool_call(stored: ChatMessage, replayed: ChatMessage) -> bool:
    """As strict, but arguments of calls are compared as JSON objects, not as text."""
    if strict(stored, replayed):
        return True
    if not all(_same_field(stored, replayed, name) for name in COMPARED[:3]):
        return False
    ours, theirs = stored.get("tool_calls"), replayed.get("tool_calls")
    if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
        return False
    return all(_same_call(left, right) for left, right in zip(ours, theirs, strict=True))


def role_content_only(stored: ChatMessage, replayed: ChatMessage) -> bool:
    """Equal role and content. Dangerous: turns that called different tools look alike."""
    return all(_same_field(stored, replayed, name) for name in COMPARED[:2])


MATCHERS: Final[dict[str, Matcher]] = {
    "strict": strict,
    "loose_tool_call": loose_tool_call,
    "role_content_only": role_content_only,
}


def resolve_matcher(name: str) -> Matcher:
    """A built-in matcher, or `module:function`; that one refuses a turn when it fails.

    Raises:
        ValueError: no such matcher, or the function cannot be called as one.
    """
    if name in MATCHERS:
        return MATCHERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"unknown matcher {name!r} at $.actors.session.matcher: known are "
            f"{', '.join(MATCHERS)}, or module:function"
        )
    function = getattr(import_module(module), attribute, None)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(f"matcher {name!r} is no synchronous function of (stored, replayed)")

    def checked(stored: ChatMessage, replayed: ChatMessage) -> bool:
        try:
            same = called(f"matcher {name}", function, stored, replayed)
        except ForeignFault as fault:
            raise TurnRefused("internal", str(fault)) from fault
        if not isinstance(same, bool):
            told = f"matcher {name} returned {reprlib.repr(same)}, True or False is needed"
            raise TurnRefused("internal", told)
        return same

    return checked


def first_difference(stored: ChatMessage, replayed: ChatMessage) -> str | None:
    """Name of the first compared field that differs strictly, or None."""
    for name in COMPARED[:3]:
        if not _same_field(stored, replayed, name):
            return name
    ours, theirs = stored.get("tool_calls"), replayed.get("tool_calls")
    if _is_empty(ours) and _is_empty(theirs):
        return None
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return None if ours == theirs else "tool_calls"
    same = [_without_index(call) for call in ours] == [_without_index(call) for call in theirs]
    return None if same else "tool_calls"


def _is_empty(value: object) -> bool:
    # Absent, null, empty text and empty list say the same.
    return value is None or (isinstance(value, str | list) and not value)


def _same_field(stored: ChatMessage, replayed: ChatMessage, name: str) -> bool:
    ours, theirs = stored.get(name), replayed.get(name)
    return ours == theirs or (_is_empty(ours) and _is_empty(theirs))


def _without_index(call: object) -> object:
    if not isinstance(call, dict) or "index" not in call:
        return call
    return {key: value for key, value in call.items() if key != "index"}


def _same_call(stored: object, replayed: object) -> bool:
    if not isinstance(stored, dict) or not isinstance(replayed, dict):
        return stored == replayed
    if stored.keys() - {"index"} != replayed.keys() - {"index"}:
        return False
    return all(
        _same_function(value, replayed[key]) if key == "function" else value == replayed[key]
        for key, value in stored.items()
        if key != "index"
    )


def _same_function(stored: object, replayed: object) -> bool:
    if not isinstance(stored, dict) or not isinstance(replayed, dict):
        return stored == replayed
    if stored.keys() - {"index"} != replayed.keys() - {"index"}:
        return False
    return all(
        _same_arguments(value, replayed[key]) if key == "arguments" else value == replayed[key]
        for key, value in stored.items()
        if key != "index"
    )


def _same_arguments(stored: object, replayed: object) -> bool:
    try:
        return same_json(_as_object(stored), _as_object(replayed))
    except (ValueError, ArithmeticError, RecursionError):
        # Not two JSON objects: then only the same text, or the same value, is the same.
        return type(stored) is type(replayed) and stored == replayed


def _as_object(arguments: object) -> dict[str, Any]:
    if arguments is None or arguments in ("", {}):
        return {}
    value = arguments
    if isinstance(arguments, str):
        value = json.loads(
            arguments,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_unique,
        )
    if not isinstance(value, dict):
        raise ValueError("arguments are no JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def same_json(left: object, right: object) -> bool:
    """Whether two values are the same in JSON, where 1 is 1.0, and True is neither."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            same_json(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            same_json(ours, theirs) for ours, theirs in zip(left, right, strict=True)
        )
    ours, theirs = _number(left), _number(right)
    if ours is not None and theirs is not None:
        return ours == theirs
    return type(left) is type(right) and left == right


def _number(value: object) -> Decimal | None:
    """Exact decimal of a JSON number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    # A float stands for the shortest decimal that reads back as it, as JSON wrote it.
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise ValueError(f"{value} is no JSON number")
    return number
