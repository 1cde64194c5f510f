"""Pins: copies of a ring, compressed, that nothing overwrites; few for each life of an actor.

A run that is resumed begins with incarnation 0 again, and keeps the pins of its earlier starts: so
the id of the start is part of their names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from milepost.actors.recorder.ring import RingDamaged, about_of

IMAGE_BYTES_MAX: Final = 1 << 33
REASON_CHARACTERS_MAX: Final = 2000
_SKIPPABLE: Final = 0x184D2A50
"""A frame that every zstd tool passes over: the reason stands in front of the image."""


class PinsFull(RuntimeError):
    """No further pin of this ring may be written."""


def write_pin(ring: Path, run_id: str, image: bytes, reason: str, pins_max: int) -> Path:
    """Write one more pin beside a ring.

    Args:
        ring: the file of the ring; the pin is named after it.
        run_id: of the start of the run that the ring is of.
        image: its content.
        reason: why it is kept.
        pins_max: pins of one ring.

    Raises:
        PinsFull: there are as many already.
        OSError: it cannot be written.
    """
    for number in range(pins_max):
        path = ring.with_suffix(f".{run_id}.pin-{number}.zst")
        if not path.exists():
            break
    else:
        raise PinsFull(f"{ring} has {pins_max} pins, system.recorder.pins_max allows no more")
    # It may be about a file whose name is no text; JSON takes text alone.
    words = reason[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()
    note = msgspec.json.encode({"reason": words, "wall_s": time.time()})
    head = _SKIPPABLE.to_bytes(4, "little") + len(note).to_bytes(4, "little")
    draft = path.with_suffix(".draft")
    draft.write_bytes(head + note + zstandard.ZstdCompressor(level=3).compress(image))
    draft.replace(path)
    return path


def read_pin(data: bytes) -> tuple[str, bytes]:
    """Reason and image of the bytes of a pin.

    Raises:
        RingDamaged: they are none.
    """
    if int.from_bytes(data[:4], "little") != _SKIPPABLE:
        raise RingDamaged("it does not begin with the reason of a pin")
    length = int.from_bytes(data[4:8], "little")
    try:
        note = msgspec.json.decode(data[8 : 8 + length])
        image = zstandard.ZstdDecompressor().decompress(
            data[8 + length :], max_output_size=IMAGE_BYTES_MAX
        )
        return str(note["reason"]), image
    except (msgspec.DecodeError, zstandard.ZstdError, KeyError, TypeError, MemoryError) as error:
        raise RingDamaged(f"it cannot be unpacked: {error!r}") from error


def pin_rings(folder: Path, run_id: str, reason: str, pins_max: int) -> Iterator[str]:
    """Pin every ring that a run of dead processes left; yields what went wrong.

    Args:
        folder: `RUN/recorder`; may be missing.
        run_id: of this start of the run; rings of earlier ones know nothing of its end.
        reason: how the run ended.
        pins_max: pins of one ring; a ring that has as many keeps them.
    """
    for ring in sorted(folder.glob("*.ring")):
        if ring.name.endswith(".earlier.ring"):
            continue
        try:
            image = ring.read_bytes()
            if about_of(image)["run_id"] == run_id:
                write_pin(ring, run_id, image, reason, pins_max)
        except (PinsFull, RingDamaged, OSError, KeyError, TypeError) as error:
            yield f"{ring} cannot be pinned: {error}"
