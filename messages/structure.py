"""Judges packed bytes before they are decoded: size, truthful lengths, depth, number of values.

A decoder that believes an announced length allocates it. So the bytes are walked first in C,
without allocating anything: `msgspec.Raw` skips over a value and checks every length. After that
a megabyte cannot grow to more than some tens of megabytes; larger bodies are walked once more, in
Python, to count their values. Depth needs a look only where the bytes could hold that many
containers at all.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, Raw
from msgspec.msgpack import Decoder

from milepost.messages.errors import ProtocolError

_skip = Decoder(Raw)

_NESTED: Final = frozenset((list, dict))
_CONTAINERS: Final = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])

SCAN_ABOVE_BYTES: Final = 1 << 20
"""Values of larger bodies are counted; these are decoded off the event loop, too."""


def check_structure(body: bytes, *, bytes_max: int, depth_max: int, items_max: int) -> bool:
    """Refuse a body that is too large, malformed, or has too many values.

    Returns:
        Whether it may be too deep: then `check_depth` has to look at the decoded value.

    Raises:
        ProtocolError: with the limit and what was found.
    """
    size = len(body)
    if size > bytes_max:
        raise ProtocolError(f"body of {size} bytes, the limit is {bytes_max}")
    try:
        _skip.decode(body)
    except DecodeError as error:
        raise ProtocolError(f"body is no msgpack: {error}") from error
    except RecursionError as error:
        raise ProtocolError(f"body is nested too deep, the limit is {depth_max}") from error
    if size > SCAN_ABOVE_BYTES:
        scan(body, depth_max, items_max)
        return False
    return size - len(body.translate(None, _CONTAINERS)) > depth_max


def check_depth(value: object, depth_max: int) -> None:
    """Refuse a plain value nested deeper than the limit; what is empty does not nest.

    Raises:
        ProtocolError: it is.
    """
    level: list[Any] = [value] if value and type(value) in _NESTED else []
    for _ in range(depth_max):
        if not level:
            return
        level = [
            child
            for one in level
            for child in (one.values() if type(one) is dict else one)
            if child and type(child) in _NESTED
        ]
    if level:
        raise ProtocolError(f"body is nested deeper than {depth_max}, which is the limit")


def _table() -> tuple[tuple[int, int, int], ...]:
    """For each first byte: (bytes of the length field, bytes to skip, values that follow).

    -1 in the third place marks a container whose count is in the length field (arrays), -2 one
    that counts pairs (maps); a length field of anything else counts bytes to skip.
    """
    rows = []
    for byte in range(256):
        if byte < 0x80 or byte >= 0xE0 or byte in (0xC0, 0xC1, 0xC2, 0xC3):
            row = (0, 0, 0)
        elif byte < 0x90:
            row = (0, 0, 2 * (byte & 15))
        elif byte < 0xA0:
            row = (0, 0, byte & 15)
        elif byte < 0xC0:
            row = (0, byte & 31, 0)
        else:
            row = _WIDE[byte]
        rows.append(row)
    return tuple(rows)


_WIDE: Final[dict[int, tuple[int, int, int]]] = {
    0xC4: (1, 0, 0),
    0xC5: (2, 0, 0),
    0xC6: (4, 0, 0),
    0xC7: (1, 1, 0),
    0xC8: (2, 1, 0),
    0xC9: (4, 1, 0),
    0xCA: (0, 4, 0),
    0xCB: (0, 8, 0),
    0xCC: (0, 1, 0),
    0xCD: (0, 2, 0),
    0xCE: (0, 4, 0),
    0xCF: (0, 8, 0),
    0xD0: (0, 1, 0),
    0xD1: (0, 2, 0),
    0xD2: (0, 4, 0),
    0xD3: (0, 8, 0),
    0xD4: (0, 2, 0),
    0xD5: (0, 3, 0),
    0xD6: (0, 5, 0),
    0xD7: (0, 9, 0),
    0xD8: (0, 17, 0),
    0xD9: (1, 0, 0),
    0xDA: (2, 0, 0),
    0xDB: (4, 0, 0),
    0xDC: (2, 0, -1),
    0xDD: (4, 0, -1),
    0xDE: (2, 0, -2),
    0xDF: (4, 0, -2),
}

_TABLE: Final = _table()


def scan(body: bytes, depth_max: int, items_max: int) -> None:
    """Count the values and the depth of a body whose lengths are known to be true.

    Raises:
        ProtocolError: too many, or too deep.
    """
    table = _TABLE
    position = 0
    left = [1]
    items = 0
    while left:
        if left[-1] == 0:
            left.pop()
            continue
        left[-1] -= 1
        items += 1
        length_bytes, skip, inside = table[body[position]]
        position += 1
        if length_bytes:
            length = int.from_bytes(body[position : position + length_bytes], "big")
            position += length_bytes
            if inside:
                inside = -inside * length
            else:
                skip += length
        position += skip
        if items + inside > items_max:
            raise ProtocolError(f"body has more than {items_max} values, which is the limit")
        if inside:
            left.append(inside)
            if len(left) - 1 > depth_max:
                raise ProtocolError(f"body is nested deeper than {depth_max}, which is the limit")
