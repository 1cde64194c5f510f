"""A topology back as TOML text, and its fingerprint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from milepost.configs.read import Document
from milepost.configs.topology import Topology


def dump_topology(topology: Topology) -> str:
    """The resolved topology as TOML, every default written out.

    `decode(tomllib.loads(dump_topology(topology))) == topology`. It holds what the topology holds
    and nothing else: keys and secrets of a run live in the spec of each process.
    """
    return "\n".join(_table(msgspec.to_builtins(topology), ())).strip() + "\n"


def topology_hash(topology: Topology) -> str:
    """32 hexadecimal digits, equal exactly when two topologies are, whatever wrote them."""
    text = msgspec.json.encode(topology, order="deterministic")
    return blake2b(text, digest_size=16).hexdigest()


def _table(table: Document, path: tuple[str, ...]) -> Iterator[str]:
    """A header, its plain keys, then the tables in it: TOML's order."""
    if path:
        yield ""
        yield "[" + ".".join(map(_key, path)) + "]"
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key, value in table.items():
        if key not in inner and value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        yield from _table(value, (*path, key))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case dict():
            pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        case _:
            raise TypeError(f"a topology cannot hold {value!r} of type {type(value).__name__}")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
