"""One line of the recorder: an event that a core was told, and the effects it answered with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

Facts: TypeAlias = dict[str, Any]
"""Ids and small numbers of a message, by field: `{"group_id": "g3", "version": 4}`."""

START: Final = "start"
VALUES_SHOWN: Final = 4


class Decision(Struct, frozen=True, array_like=True, gc=False):
    """One effect."""

    kind: str
    """`tell`, `ask`, `reply`, `wake`, `work` or `fail`."""
    to: str = ""
    """Receiver of a message; the reason of a `fail`."""
    type: str = ""
    """Of the message or the work."""
    key: str = ""
    message_id: int = 0
    """On the bus, of what was sent; 0: nothing was."""
    facts: Facts = {}
    digest: int = 0
    """xxh3-64 of the message as it travelled, or of its content in a full recording; 0: none."""
    at: float | None = None
    """Time of a `wake`, deadline of a message in seconds; None: the run's own."""
    confirm: bool = False


class Line(Struct, frozen=True, array_like=True, gc=False):
    """One call of the core."""

    number: int
    """From 0, without a gap."""
    wall_s: float
    """Of this host's clock."""
    now_s: float
    """As the core was told."""
    kind: str
    """`start`, `received`, `answered`, `unanswered`, `taken`, `woken` or `done`."""
    source: str = ""
    """Who sent it, or did not take or answer ours."""
    type: str = ""
    """Of the message, or of the result of work."""
    key: str = ""
    message_id: int = 0
    """On the bus, of what arrived."""
    cause: int = 0
    """Id of the message that led to this."""
    wants_reply: bool = False
    facts: Facts = {}
    digest: int = 0
    """xxh3-64 of the message as it travelled; in a full recording, the address of its content."""
    error: str = ""
    """Why there was no answer or no result; or what the core raised."""
    decisions: list[Decision] = []


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[list[Any]])
_FIELDS: Final = Line.__struct_fields__
_TYPE, _FACTS, _DECISIONS = (_FIELDS.index(name) for name in ("type", "facts", "decisions"))
_DECISION_FIELDS: Final = Decision.__struct_fields__
_DECISION_TYPE, _DECISION_FACTS = (_DECISION_FIELDS.index(name) for name in ("type", "facts"))


def encode_lines(lines: Sequence[Line | tuple[Any, ...]]) -> bytes:
    """One record of a ring.

    Args:
        lines: or their fields. Facts may be values alone: whoever reads them names them.

    Raises:
        OverflowError, UnicodeEncodeError: something in them is no msgpack.
    """
    return _encoder.encode(lines)


def decode_lines(data: bytes, names_of: Callable[[str], tuple[str, ...]]) -> list[Line]:
    """The same back.

    Args:
        data: what `encode_lines` gave.
        names_of: the names of facts whose values alone were written, by type of message.

    Raises:
        msgspec.DecodeError: it was written by another commit.
    """
    found = _decoder.decode(data)
    for parts in found:
        if len(parts) != len(_FIELDS) or not isinstance(parts[_DECISIONS], list):
            continue
        _name(parts, _TYPE, _FACTS, names_of)
        for told in parts[_DECISIONS]:
            if isinstance(told, list) and len(told) == len(_DECISION_FIELDS):
                _name(told, _DECISION_TYPE, _DECISION_FACTS, names_of)
    return msgspec.convert(found, list[Line])


def _name(
    parts: list[Any], kind: int, facts: int, names_of: Callable[[str], tuple[str, ...]]
) -> None:
    """Give the values their names; numbers where they are not known."""
    values = parts[facts]
    if isinstance(values, list) and isinstance(parts[kind], str):
        names = names_of(parts[kind])
        if len(names) != len(values):
            names = tuple(f"value_{number}" for number in range(len(values)))
        parts[facts] = named(names, values)


def named(names: Iterable[str], values: Iterable[Any]) -> Facts:
    """Facts of values; a text or list without anything in it is none."""
    pairs = zip(names, values, strict=True)
    return {name: each for name, each in pairs if each or not isinstance(each, str | list | tuple)}


def ids_of(line: Line) -> Iterator[str]:
    """Names that this line speaks of: trajectories, groups, sessions, prompts."""
    yield from names_in(line.facts)
    for decision in line.decisions:
        yield from names_in(decision.facts)


def names_in(facts: Facts) -> Iterator[str]:
    """Names in the facts of one message."""
    for name, value in facts.items():
        if name.endswith("_ids"):
            yield from value
        elif name.endswith("_id") and value is not None:
            yield value


# ---- for people --------------------------------------------------------------------------


def words_of(line: Line) -> str:
    """`#812 14:05:31.234 received EpisodeEnded from agent-0 (...) -> ask session-0 ...`."""
    return f"#{line.number} {clock(line.wall_s)} {event_words(line)}{_then(line.decisions)}"


def event_words(line: Line) -> str:
    """The event alone."""
    text = " ".join(filter(None, (line.kind, line.type)))
    if line.source:
        text += f" from {line.source}"
    if line.key:
        text += f" [{line.key}]"
    text += facts_words(line.facts)
    return f"{text}: {line.error}" if line.error else text


def decision_words(decision: Decision) -> str:
    """One effect."""
    text = " ".join(filter(None, (decision.kind, decision.to, decision.type)))
    if decision.key:
        text += f" [{decision.key}]"
    text += facts_words(decision.facts)
    if decision.at is not None:
        text += f" at {decision.at:.3f}" if decision.kind == "wake" else f" in {decision.at:g} s"
    return text


def facts_words(facts: Facts) -> str:
    """` (group_id g3, version 4)`; empty when there are none."""
    parts = [f"{name} {_value(value)}" for name, value in facts.items() if value is not None]
    return f" ({', '.join(parts)})" if parts else ""


def clock(wall_s: float) -> str:
    """Time of day with milliseconds."""
    whole = int(wall_s)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole))}.{int((wall_s - whole) * 1000):03}"


def _then(decisions: Iterable[Decision]) -> str:
    words = "; ".join(decision_words(each) for each in decisions if each.kind != "wake")
    return f" -> {words}" if words else ""


def _value(value: Any) -> str:
    match value:
        case list():
            more = len(value) - VALUES_SHOWN
            shown = " ".join(map(str, value[:VALUES_SHOWN]))
            return f"{shown} and {more} more" if more > 0 else shown
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
