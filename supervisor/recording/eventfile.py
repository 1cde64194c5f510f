"""TensorBoard event files, written by hand: scalars need 60 lines and no numpy.

A record is (length, masked CRC-32C of the length, data, masked CRC-32C of the data), as in
TensorFlow's record writer. The data is a protocol buffer `Event` {1: wall_time double,
2: step int64, 3: file_version string, 5: Summary {1: Value {1: tag string, 2: simple_value
float}}}. A test reads the files back with TensorBoard's own loader.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_CASTAGNOLI: Final = 0x82F63B78
_MASK_DELTA: Final = 0xA282EAD8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE: Final = _crc_table()


class EventFile:
    """One file of scalars, flushed after each step.

    Args:
        folder: made if missing; the file's name carries time, host and process, as TensorBoard
            expects, so that a resumed run adds a file of its own.
        wall_s: seconds since 1970.
        purge_step: of a resumed run: what earlier files say of this step and later ones is void
            (`SessionLog {1: status = START}`, field 7 of an event).
    """

    def __init__(self, folder: Path, wall_s: float, purge_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(wall_s):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("ab")
        self._write(_double(1, wall_s) + _text(3, "brain.Event:2"))
        if purge_step is not None:
            start = _field(7, _key(1, _VARINT) + _varint(1))
            self._write(_double(1, wall_s) + _step(purge_step) + start)

    def scalars(self, step: int, values: Mapping[str, float], wall_s: float) -> None:
        """Write the values of one step."""
        summary = b"".join(
            _field(1, _text(1, tag) + _key(2, _FIXED32) + _float(value))
            for tag, value in values.items()
        )
        self._write(_double(1, wall_s) + _step(step) + _field(5, summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(
            length
            + struct.pack("<I", masked_crc(length))
            + data
            + struct.pack("<I", masked_crc(data))
        )
        self._file.flush()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted by a constant so that a CRC of CRCs stays useful."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _double(number: int, value: float) -> bytes:
    return _key(number, _FIXED64) + struct.pack("<d", value)


def _float(value: float) -> bytes:
    """In 32 bits; what they do not hold is infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _step(step: int) -> bytes:
    return _key(2, _VARINT) + _varint(step)


def _field(number: int, data: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())
