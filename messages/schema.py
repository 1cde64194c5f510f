"""A fingerprint of every message type, so that processes of two commits do not mix."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Any

import msgspec

from milepost.messages.bulk import Bulk
from milepost.messages.envelope import PROTOCOL
from milepost.messages.registry import MODULES, messages_in


@cache
def fingerprint() -> str:
    """32 hex digits over protocol version, names, fields, types, ranges and defaults.

    Equal in every process started from one commit; another after any change to what may be said.
    """
    digest = blake2b(repr(PROTOCOL).encode(), digest_size=16)
    own = [kind for module in MODULES for kind in messages_in(module)]
    for kind in sorted(own, key=lambda one: one.__name__):
        schema = msgspec.json.schema(kind, schema_hook=_bulk_schema)
        digest.update(kind.__name__.encode())
        digest.update(msgspec.json.encode(schema, order="deterministic"))
    return digest.hexdigest()


def _bulk_schema(kind: type) -> dict[str, Any]:
    if kind is Bulk:
        return {"title": "Bulk"}
    raise NotImplementedError
