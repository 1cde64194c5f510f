"""What is searched for: the words of an address as a query, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from msgspec.structs import asdict

from milepost.actors.archive.layout import Verdict
from milepost.actors.archive.query import TEXT_MIN, Query
from milepost.messages.shared import Status

Word = TypeVar("Word", bound=StrEnum)
ORDERS: Final = {
    "time": "oldest first",
    "-reward": "highest reward",
    "reward": "lowest reward",
    "-advantage": "highest advantage",
    "advantage": "lowest advantage",
    "-staleness": "stalest first",
    "-num_tokens": "longest first",
    "num_tokens": "shortest first",
}
"""Orders of a list beside `-time`, and what they are called."""
NEWEST: Final = "-time"
FIELDS: Final = (
    "text",
    "status",
    "verdict",
    "step",
    "group",
    "reward_min",
    "reward_max",
    "staleness_min",
    "mismatch",
    "order",
    "page",
)
"""Words of an address that a search knows."""


class NotSearchable(ValueError):
    """A word of the address is no value of its field."""


def query_of(words: Mapping[str, str]) -> Query:
    """The query that an address asks for; empty words ask for nothing.

    Raises:
        NotSearchable: see there.
    """
    order = words.get("order", "") or NEWEST
    if order not in ORDERS and order != NEWEST:
        raise NotSearchable(f"order = {order!r}, known are {', '.join(ORDERS)}")
    return Query(
        status=_word(words, "status", Status),
        verdict=_word(words, "verdict", Verdict),
        step=_whole(words, "step"),
        group_id=words.get("group") or None,
        reward_min=_number(words, "reward_min"),
        reward_max=_number(words, "reward_max"),
        staleness_min=_whole(words, "staleness_min"),
        has_mismatch=_choice(words, "mismatch"),
        text=_text(words),
        order_by=order.removeprefix("-"),  # type: ignore[arg-type] # one of ORDERS
        descending=order.startswith("-"),
    )


def words_of(given: Mapping[str, str]) -> dict[str, str]:
    """The words that a search knows, less those that say nothing."""
    return {name: given[name] for name in FIELDS if given.get(name, "").strip()}


def is_narrow(query: Query) -> bool:
    """Whether it leaves anything out."""
    bare = Query(order_by=query.order_by, descending=query.descending)
    return asdict(query) != asdict(bare)


def _text(words: Mapping[str, str]) -> str | None:
    text = words.get("text", "").strip()
    if "\0" in text:  # where it stands, SQLite takes a question for ended
        raise NotSearchable(f"text = {text!r} has a NUL, leave it out")
    if 0 < len(text) < TEXT_MIN:
        raise NotSearchable(f"text = {text!r} is too short to look for, write {TEXT_MIN} or more")
    return text or None


def _number(words: Mapping[str, str], name: str) -> float | None:
    text = words.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise NotSearchable(f"{name} = {text!r} is no number")
    return value


def _whole(words: Mapping[str, str], name: str) -> int | None:
    text = words.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise NotSearchable(f"{name} = {text!r} is no whole number")
    return int(text)


def _word(words: Mapping[str, str], name: str, known: type[Word]) -> Word | None:
    text = words.get(name, "")
    if text and text not in set(known):
        raise NotSearchable(f"{name} = {text!r}, known are {', '.join(known)}")
    return known(text) if text else None


def _choice(words: Mapping[str, str], name: str) -> bool | None:
    text = words.get(name, "")
    if text in {"", "yes", "no"}:
        return {"": None, "yes": True, "no": False}[text]
    raise NotSearchable(f"{name} = {text!r}, known are yes and no")
