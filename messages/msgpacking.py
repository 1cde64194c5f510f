"""The bytes: the `msgpack` package, with types, and `msgspec` where every microsecond counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import msgspec

pack: Final[Callable[[Any], bytes]] = msgpack.packb
"""Any plain value to bytes, on any thread."""

unpack: Final[Callable[..., Any]] = msgpack.unpackb
"""Bytes to a plain value.

Raises:
    ValueError, TypeError, RecursionError: malformed.
"""


def packer() -> Callable[[Any], bytes]:
    """A faster `pack` for tuples of names and numbers, for one thread."""
    return msgspec.msgpack.Encoder().encode
