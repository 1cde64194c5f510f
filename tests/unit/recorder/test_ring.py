"""The mapped ring: bounded, readable at any moment, and after any death of its writer."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from milepost.actors.recorder.ring import (
    CAPACITY_BYTES_MIN,
    HEADER_BYTES,
    Image,
    Ring,
    RingDamaged,
    look_at,
    read_file,
    read_image,
)


def payloads(seed: int, count: int, longest: int) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.randrange(longest)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_a_ring_holds_the_last_records_as_a_slow_list_would(tmp_path: Path, seed: int) -> None:
    """Records of every length, over many rounds of the file, read after each: always a suffix of
    what was written, and never shorter than fifteen sixteenths of the room allow."""
    ring = Ring(tmp_path / "a.ring", CAPACITY_BYTES_MIN, {"seed": seed})
    written: deque[bytes] = deque(maxlen=4000)
    longest = 16 << (seed % 8)
    for payload in payloads(seed, 400, longest):
        for _ in range(3):
            ring.append(payload)
            written.append(payload)
        about, kept = read_image(ring.image())
        assert about == {"seed": seed}
        assert kept == list(written)[-len(kept) :]
        room = sum(len(each) + 16 for each in list(written)[-len(kept) - 1 :])
        assert len(kept) == len(written) or room + longest + ring.capacity // 16 > ring.capacity
    ring.close()
    assert read_file(tmp_path / "a.ring") == Image({"seed": seed}, kept, "")


def test_what_a_dead_writer_left_half_done_is_not_read(tmp_path: Path) -> None:
    """A death between the words of the header and the bytes of a record: the record before it is
    the last one that is read, and nothing that was never written."""
    ring = Ring(tmp_path / "a.ring", CAPACITY_BYTES_MIN, {})
    for number in range(20):
        ring.append(b"%d" % number * 50)
    image = bytearray(ring.image())
    head = int.from_bytes(image[24:32], "little")
    image[24:32] = (head + 64).to_bytes(8, "little")
    _, records = read_image(bytes(image))
    assert records == [b"%d" % number * 50 for number in range(20)], "a hole is no record"


def test_a_damaged_place_costs_what_stood_there_and_is_told(tmp_path: Path) -> None:
    """What is read on, as if it were all, would be a replay of something that never happened."""
    ring = Ring(tmp_path / "a.ring", CAPACITY_BYTES_MIN, {})
    written = [b"%d" % number * 50 for number in range(20)]
    for payload in written:
        ring.append(payload)
    whole = ring.image()
    assert look_at(whole).damage == ""
    for place in (HEADER_BYTES + 64 + 20, HEADER_BYTES + 64, HEADER_BYTES + 64 + 3):
        image = bytearray(whole)
        image[place] ^= 1
        found = look_at(bytes(image))
        assert found.records == [written[0], *written[2:]], "those behind it are found again"
        assert found.damage == f"1 place, at byte {HEADER_BYTES + 64}"
    head = int.from_bytes(whole[24:32], "little")
    cut = whole[: HEADER_BYTES + head - 100] + bytes(len(whole) - HEADER_BYTES - head + 100)
    found = look_at(cut)
    assert (found.records, bool(found.damage)) == (written[:-1], True), "an end is missed, too"
    ring.close()


def test_a_reader_that_is_overtaken_gets_only_what_is_still_whole(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "a.ring", CAPACITY_BYTES_MIN, {})
    for number in range(100):
        ring.append(b"%03d" % number)
    image = ring.image()
    tail = 16 * 40
    assert read_image(image, tail_min=tail)[1] == [b"%03d" % number for number in range(40, 100)]


def test_a_ring_takes_its_room_at_once_and_refuses_what_is_none(tmp_path: Path) -> None:
    """The disk being full must be an error at the start, not a signal in the middle of a run."""
    ring = Ring(tmp_path / "a.ring", 1 << 20, {"actor": "buffer"})
    assert (tmp_path / "a.ring").stat().st_blocks * 512 >= 1 << 20
    with pytest.raises(AssertionError, match="a record of"):
        ring.append(bytes(1 << 19))
    ring.close()
    with pytest.raises(RingDamaged, match="without the mark"):
        read_image(b"nonsense")
    damaged = bytearray((tmp_path / "a.ring").read_bytes())
    damaged[24:32] = (1 << 50).to_bytes(8, "little")
    with pytest.raises(RingDamaged, match="head 1125899906842624"):
        read_image(bytes(damaged))
