"""One copied message, read: its envelope, its fields, and arrays as far as they were copied."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from msgspec import Struct

from milepost.messages.bulk import ITEM_BYTES
from milepost.messages.envelope import unpack_header
from milepost.messages.msgpacking import unpack
from milepost.messages.supervisor import TrafficCopy

VALUES_MAX: Final = 8
"""Of an array, in a line of text."""
VALUE_CHARACTERS_MAX: Final = 300
DEPTH_MAX: Final = 100
"""Of tables in tables; no message has as many, but an agent may report what it likes."""
DEEPER: Final = f"(deeper than {DEPTH_MAX} levels)"
FORMATS: Final = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "int16": "h",
    "float16": "e",
    "int32": "i",
    "float32": "f",
    "int64": "q",
    "float64": "d",
}


class NotCopied(LookupError):
    """It lies in a part of an array that the tap did not copy, or may lie there."""


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array of a message: what it is, and its first values."""

    dtype: str
    shape: list[int]
    first: list[Any]

    def __len__(self) -> int:
        """Size of its first dimension."""
        return self.shape[0] if self.shape else 1

    def __getitem__(self, key: str | int) -> Any:
        """`dtype`, `shape`, or a value by its place, the dimensions taken as one.

        Raises:
            KeyError, IndexError: neither.
            NotCopied: the array has such a value, and the tap did not copy it.
        """
        match key:
            case "dtype":
                return self.dtype
            case "shape":
                return self.shape
            case int() if not -self._size <= key < self._size:
                raise IndexError(key)
            case int():
                place = key % self._size
                if place >= len(self.first):
                    raise self._not_copied()
                return self.first[place]
            case _:
                raise KeyError(key)

    def __contains__(self, value: object) -> bool:
        """Whether it is among the values.

        Raises:
            NotCopied: it is not among those that the tap copied, and there are others.
        """
        if value in self.first:
            return True
        if len(self.first) < self._size:
            raise self._not_copied()
        return False

    def __eq__(self, other: object) -> bool:
        """Whether it has these values, the dimensions taken as one; or is the same array.

        Raises:
            NotCopied: as many, and those that the tap copied are the same; there are others.
        """
        match other:
            case Array():
                is_alike = (self.dtype, self.shape) == (other.dtype, other.shape)
                values = other.first
            case list():
                is_alike = len(other) == self._size
                values = other[: len(self.first)]
            case _:
                return NotImplemented
        if is_alike and values == self.first and len(self.first) < self._size:
            raise self._not_copied()
        return is_alike and values == self.first

    __hash__ = None  # type: ignore[assignment]

    @property
    def _size(self) -> int:
        return prod(self.shape)

    def _not_copied(self) -> NotCopied:
        return NotCopied(f"only the first {len(self.first)} of {self._size} were copied")

    def __str__(self) -> str:
        """`int32[812] 151644 8948 ...`."""
        values = " ".join(_value(value) for value in self.first[:VALUES_MAX])
        more = " ..." if self._size > len(self.first[:VALUES_MAX]) else ""
        return f"{self.dtype}{self.shape} {values}{more}".rstrip()


class Seen(Struct, frozen=True, kw_only=True):
    """One message of an edge."""

    at_ns: int
    envelope: dict[str, Any]
    """source, to, kind, type, id, cause, bytes; staleness, where somebody asked and it has one."""
    fields: dict[str, Any]
    """Arrays are `Array`s; empty when the body was too long to be copied."""
    is_whole: bool
    """The body was copied and could be read."""

    def line(self) -> str:
        """Time, edge, what it is and how large."""
        seconds, nanoseconds = divmod(self.at_ns, 1_000_000_000)
        clock = (
            f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{nanoseconds // 1_000_000:03}"
        )
        facts = self.envelope
        cause = f" for {facts['cause']}" if facts["cause"] else ""
        age = f"  staleness {facts['staleness']}" if "staleness" in facts else ""
        return (
            f"{clock}  {facts['source']} -> {facts['to']}  {facts['kind']} {facts['type']}"
            f"  {facts['bytes']} bytes  id {facts['id']}{cause}{age}"
        )

    def decoded_lines(self, texts: Mapping[str, str]) -> list[str]:
        """A line for each field, and for each row of tokens whose text is known."""
        if not self.is_whole:
            return ["    (the body is longer than a tap copies)"]
        lines = [f"    {name} = {_short(value)}" for name, value in self.fields.items()]
        return lines + [f"    {path} says {text}" for path, text in texts.items()]

    def as_json(self, texts: Mapping[str, str], *, decode: bool) -> dict[str, Any]:
        """All of it as plain values."""
        facts = {"at_ns": self.at_ns, **self.envelope}
        if decode:
            facts["fields"] = _plain(self.fields) if self.is_whole else None
            facts["texts"] = texts
        return facts


def read_copy(actor: str, copy: TrafficCopy) -> Seen:
    """Read what a tap of `actor` copied.

    Raises:
        ProtocolError: its header cannot be read.
    """
    header = unpack_header(copy.header)
    source, to = (actor, copy.peer) if copy.outgoing else (copy.peer, actor)
    envelope = {
        "source": source,
        "to": to,
        "kind": copy.kind,
        "type": header.type,
        "id": header.id,
        "cause": header.cause,
        "bytes": copy.num_bytes,
    }
    fields = _fields(copy)
    return Seen(
        at_ns=copy.at_ns, envelope=envelope, fields=fields or {}, is_whole=fields is not None
    )


def _fields(copy: TrafficCopy) -> dict[str, Any] | None:
    if not copy.body:
        return None
    try:
        body = unpack(copy.body)
    except (ValueError, TypeError, RecursionError):
        return None
    return _with_arrays(body, copy.buffers) if isinstance(body, dict) else None


def _with_arrays(value: Any, buffers: Sequence[bytes], depth: int = 0) -> Any:
    if depth == DEPTH_MAX and isinstance(value, dict | list):
        return DEEPER
    match value:
        case {"dtype": str(dtype), "shape": list(shape)} if _is_array(dtype, shape):
            return Array(dtype, shape, _first(dtype, shape, _bytes(value, buffers)))
        case dict():
            return {key: _with_arrays(each, buffers, depth + 1) for key, each in value.items()}
        case list():
            return [_with_arrays(each, buffers, depth + 1) for each in value]
        case _:
            return value


def _is_array(dtype: str, shape: Sequence[Any]) -> bool:
    # Data of the user's own may have fields of these names, too.
    return dtype in ITEM_BYTES and all(isinstance(size, int) and size >= 0 for size in shape)


def _bytes(place: Mapping[str, Any], buffers: Sequence[bytes]) -> bytes:
    match place:
        case {"data": bytes(data)}:
            return data
        case {"frame": int(frame)} if frame < len(buffers):
            return buffers[frame][place.get("offset", 0) :]
        case _:
            return b""  # in shared memory, which a tap does not open


def _first(dtype: str, shape: Sequence[int], data: bytes) -> list[Any]:
    count = min(prod(shape), len(data) // ITEM_BYTES[dtype])
    if dtype == "bfloat16":
        # The upper half of a float32's bits.
        halves = struct.unpack_from(f"<{count}H", data)
        return list(
            struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(h << 16 for h in halves)))
        )
    return list(struct.unpack_from(f"<{count}{FORMATS[dtype]}", data))


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> str:
    text = _words(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text
    return f"{text[:VALUE_CHARACTERS_MAX]}... ({len(text)} characters)"


def _words(value: Any) -> str:
    match value:
        case Array():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{key}: {_words(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(_words(each) for each in value) + "]"
        case _:
            return repr(value)


def _plain(value: Any) -> Any:
    match value:
        case Array(dtype=dtype, shape=shape, first=first):
            return {"dtype": dtype, "shape": shape, "first": first}
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.hex()
        case _:
            return value
