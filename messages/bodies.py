"""Bodies whose types do not say what every value is (`dict[str, Any]`), and why one is unreadable.

Apart from the codec, which knows all types there are: who reads one type alone need not import
the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import DecodeError, ValidationError, convert

from milepost.messages.errors import ProtocolError
from milepost.messages.msgpacking import unpack
from milepost.messages.shared import Message
from milepost.messages.structure import check_depth
from milepost.messages.upgrades import Upgrade, upgrade

RAW: Final = (bytes, bytearray, memoryview)
"""Types that are left alone on the way to plain values and back."""
UNREADABLE: Final = (DecodeError, ValueError, TypeError, RecursionError, OverflowError)
"""What a body that is not of its type raises; `ValidationError` is one of them."""
_NOT_FINITE: Final = re.compile(r"Expected `float` [<>]= -?1\.797\d*e\+308")
"""How msgspec words what `Finite` refuses."""
Kind = TypeVar("Kind", bound=Message)


def read_open(
    kind: type[Kind],
    body: bytes,
    *,
    depth_max: int = 0,
    version: tuple[int, int],
    steps: tuple[Upgrade, ...],
    hook: Callable[[type, Any], Any] | None = None,
) -> Kind:
    """Unpacked first by `msgpack`, which takes fewer kinds of values, then fitted to its type.

    Args:
        kind: of the message.
        body: its structure was checked.
        depth_max: nesting that is allowed, where it may be too deep; 0: it cannot be.
        version: of the protocol that it was written in.
        steps: those of `upgrades` that may apply.
        hook: puts arrays where they belong.

    Raises:
        ProtocolError, UNREADABLE: it is no such message; `unreadable` words the latter.
    """
    fields = unpack(body, ext_hook=_refuse_extension)
    if depth_max:
        check_depth(fields, depth_max)
    if steps:
        fields = upgrade(kind.__name__, fields, version, steps)
    return convert(fields, kind, builtin_types=RAW, dec_hook=hook)


def unreadable(type_name: str, error: Exception) -> ProtocolError:
    """The same error as the bus tells it, with the path of the field."""
    if isinstance(error, ValidationError):
        text = _NOT_FINITE.sub("expected a finite number", str(error))
        return ProtocolError(f"{type_name}: {text}")
    return ProtocolError(f"{type_name} cannot be read: {error}")


def _refuse_extension(code: int, data: bytes) -> None:
    raise ProtocolError(f"extension type {code} ({len(data)} bytes) is not part of the protocol")
