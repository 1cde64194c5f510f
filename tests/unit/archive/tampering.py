"""Somebody who edits an archive: changes one thing, and covers the tracks more or less well."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from unit.archive.kit import MODEL

from milepost.actors.archive import layout
from milepost.actors.archive.layout import (
    ArrivedBody,
    Body,
    Head,
    Kind,
    Record,
    arrived,
    digest_of,
    framed,
    read_arrived,
    read_head,
    read_trained,
)
from milepost.actors.archive.segments import Found, walk
from milepost.messages.bulk import Bulk

NEW_VALUES: dict[str, Any] = {
    "model": MODEL,
    "routes": Bulk("uint8", (13, 1, 1), bytes(13)),
    "canonical_mismatch": "some",
    "seconds": 1.0,
    "staleness": 3,
    "group_rewards": (7.0,),
    "mismatch_kinds": ("assistant_text",),
    "stop_token_ids": (7,),
}
"""For fields that are None or empty."""


class Cover(Enum):
    """How well the tracks are covered; each level does what the ones before do, too."""

    CHECKSUM = 1
    """The frame's checksum is made again."""
    DIGEST = 2
    """The record's digest, too; the next record still follows from the original."""
    CHAIN = 3
    """All later records of the writer are linked anew."""
    HEAD = 4
    """Head and digests of fields are made anew from the changed rows; the seal stays."""


def mutants(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value with one leaf changed) for every leaf of a struct, and for every length."""
    match value:
        case Bulk():
            data = bytearray(value.data)
            if data:
                data[len(data) // 2] ^= 1
                yield path, Bulk(value.dtype, value.shape, bytes(data))
            kinds = {"int32": "float32", "float32": "int32", "uint8": "int8"}
            yield f"{path}.dtype", Bulk(kinds[value.dtype], value.shape, value.data)
            yield f"{path}.shape", Bulk(value.dtype, (*value.shape, 1), value.data)
        case msgspec.Struct():
            for field in msgspec.structs.fields(value):
                name, old = field.name, getattr(value, field.name)
                is_empty = old is None or old == ()
                if not is_empty and field.default is None:
                    yield f"{path}.{name}[None]", msgspec.structs.replace(value, **{name: None})
                inner = [("", NEW_VALUES[name])] if is_empty else mutants(old)
                for deeper, changed in inner:
                    whole = msgspec.structs.replace(value, **{name: changed})
                    yield f"{path}.{name}{deeper}", whole
        case tuple():
            if value:
                yield f"{path}[:-1]", value[:-1]
            for place, each in enumerate(value):
                for deeper, changed in mutants(each):
                    yield f"{path}[{place}]{deeper}", (*value[:place], changed, *value[place + 1 :])
        case dict():
            key, held = next(iter(value.items()), ("a", 1.0))
            more = 7 if isinstance(key, int) else "more"
            yield f"{path}[more]", {**value, more: held}
            for key, each in value.items():
                for deeper, changed in mutants(each):
                    yield f"{path}[{key}]{deeper}", {**value, key: changed}
        case _:
            yield path, _other(value)


def _other(value: Any) -> Any:
    match value:
        case Enum():
            return next(each for each in type(value) if each is not value)
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 + 0.125  # another one, and a probability stays one
        case str():
            return value + "0"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    raise AssertionError(value)


def records_of(path: Path) -> list[Record]:
    """Every record of an undamaged file."""
    found = list(walk(path))
    assert all(isinstance(each, Found) for each in found)
    return [each.record for each in found if isinstance(each, Found)]


def body_of(record: Record) -> Body | None:
    """The body of a record; None when its kind has none."""
    if record.kind is Kind.ARRIVED:
        return read_arrived(record)
    return read_trained(record) if record.kind is Kind.TRAINED else None


def with_parts(record: Record, head: Head, body: Body | None) -> Record:
    """The record with another head or body, under its old digest."""
    packed = b"" if body is None else layout.encode(body)
    if isinstance(body, ArrivedBody):
        packed = zstandard.compress(packed, 1)
    return msgspec.structs.replace(record, head=layout.encode(head), body=packed)


def rewrite(path: Path, place: int, changed: Record, cover: Cover) -> None:
    """Put a changed record in the place of one in a file, and cover the tracks."""
    records = records_of(path)
    body = body_of(changed) if cover is Cover.HEAD else None
    if isinstance(body, ArrivedBody):
        head = read_head(changed)
        assert isinstance(head, layout.Arrived)
        changed = with_parts(changed, arrived(body.rows, head.source)[0], body)
    if cover is not Cover.CHECKSUM:
        changed = msgspec.structs.replace(changed, digest=digest_of(changed))
    records[place] = changed
    if cover in (Cover.CHAIN, Cover.HEAD):
        for at in range(place + 1, len(records)):
            linked = msgspec.structs.replace(records[at], previous=records[at - 1].digest)
            records[at] = msgspec.structs.replace(linked, digest=digest_of(linked))
    path.write_bytes(b"".join(map(framed, records)))
