"""What the recorder keeps of a message: ids, small numbers, and a digest of the rest.

Runs for every event and effect of every actor. Arrays longer than `HASHED_BYTES_MAX` count by
dtype and shape only; weights always do, since checkpoints hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec
import xxhash

from milepost.actors.recorder.lines import Facts
from milepost.messages.bulk import Bulk
from milepost.messages.engine import WeightBucket
from milepost.messages.publisher import BucketReady
from milepost.messages.shared import Message

HASHED_BYTES_MAX: Final = 1 << 14
"""About 1 us. Hashing more would be felt by an engine that gets long prompts."""
WEIGHTS: Final[frozenset[type]] = frozenset({WeightBucket, BucketReady})
IDS_MAX: Final = 64
"""In one list of names."""
TEXT_CHARACTERS_MAX: Final = 120
TEXTS: Final = frozenset(
    {
        "actor",
        "agent",
        "cause",
        "engine",
        "finish_reason",
        "guard",
        "holder",
        "kind",
        "limit",
        "order",
        "purpose",
        "reason",
        "report_to",
        "status",
    }
)
"""Fields of text worth reading. Others may be long, or hold the key of a door."""
NAMES: Final = ("trajectory_id", "group_id")
"""Taken from structs inside of a message, too."""


def facts_of(message: Message) -> Facts:
    """Ids and small numbers, in the order of the fields."""
    facts: Facts = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        match value:
            case bool() | int() | float():
                facts[name] = value
            case StrEnum():
                facts[name] = value.value
            case str():
                if value and (name.endswith("_id") or name in TEXTS):
                    facts[name] = value[:TEXT_CHARACTERS_MAX]
            case tuple() | list():
                _add_names(facts, name, value)
            case Bulk() | dict() | None:
                pass
            case msgspec.Struct():
                _add_names(facts, name, (value,))
    return facts


def _add_names(facts: Facts, name: str, values: Iterable[Any]) -> None:
    if name.endswith("_ids") and name != "token_ids":
        facts[name] = list(values)[:IDS_MAX]
        return
    for each in values:
        if not isinstance(each, msgspec.Struct) or isinstance(each, Message):
            return
        for kind in NAMES:
            found = getattr(each, kind, None)
            if found is not None:
                known = facts.setdefault(f"{kind}s", [])
                if found not in known and len(known) < IDS_MAX:
                    known.append(found)


def _hashed(bulk: object) -> tuple[str, tuple[int, ...], int]:
    if not isinstance(bulk, Bulk):
        raise TypeError(f"a {type(bulk).__name__} is nothing that travels")
    content = xxhash.xxh3_64_intdigest(bulk.data) if bulk.nbytes <= HASHED_BYTES_MAX else 0
    return bulk.dtype, bulk.shape, content


def _shape(bulk: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(bulk, Bulk):
        raise TypeError(f"a {type(bulk).__name__} is nothing that travels")
    return bulk.dtype, bulk.shape


_fast: Final = msgspec.msgpack.Encoder(enc_hook=_hashed)
_hollow: Final = msgspec.msgpack.Encoder(enc_hook=_shape)


def digest_of(message: Message) -> int:
    """xxh3-64 of the message's type and content; never 0.

    Raises:
        TypeError, OverflowError: it holds what no message may hold.
    """
    kind = type(message)
    encoder = _hollow if kind in WEIGHTS else _fast
    hasher = xxhash.xxh3_64(kind.__name__.encode())
    hasher.update(encoder.encode(message))
    return hasher.intdigest() or 1
