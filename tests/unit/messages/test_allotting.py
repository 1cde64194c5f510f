"""Memory that payloads are made in: shared, sent without a copy, and never too early used again."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from unit.messages.house import MIB, House

from milepost.actors.arrays import to_bulk
from milepost.messages.bulk import Bulk
from milepost.messages.bus.borrowing import Borrower
from milepost.messages.bus.memmove import address_of
from milepost.messages.bus.segments import POOL_BYTES_MAX


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.lender.close()
    assert made.names() == set()


def test_a_payload_made_in_place_is_lent_as_it_lies(house: House) -> None:
    """All of it, a part of it, and what NumPy makes of it; nothing is copied."""
    made = house.make(1)
    made[4096:8192] = b"x" * 4096
    array = np.frombuffer(made, np.float32)[1024:2048].reshape(32, 32)
    loan = house.lend(
        1, made, made[4096:8192], to_bulk(array).data, Bulk("uint8", (MIB,), made).data
    )
    assert loan.fresh is None
    assert [place.offset for place in loan.places] == [0, 4096, 4096, 0]
    assert len({place.segment for place in loan.places}) == 1
    assert house.segments.num_bytes == MIB
    assert house.read(loan, 2, 4096) == b"x" * 4096
    assert address_of(made) % 64 == 0


def test_ordinary_bytes_beside_it_are_copied_as_ever(house: House) -> None:
    other = memoryview(bytes([9]) * MIB)
    loan = house.lend(1, house.make(1), other)
    assert loan.fresh is not None
    assert [place.segment == loan.fresh.name for place in loan.places] == [False, True]
    assert [house.read(loan, at)[:1] for at in (0, 1)] == [b"\1", b"\x09"]


ENDS = ("dropped", "acknowledged", "given back")


@pytest.mark.parametrize("order", list(itertools.permutations(ENDS)), ids=">".join)
def test_it_is_used_again_only_after_all_three_ends(order: tuple[str, ...], house: House) -> None:
    """Its owner let go of it, the receiver took the message, the receiver reads it no more."""
    held = {"payload": house.make(1)}
    base = address_of(held["payload"])
    loan = house.lend(1, held["payload"])
    for end in order:
        other = house.allotments.allocate(MIB)
        assert address_of(other) != base, f"before it was {end}"
        del other
        match end:
            case "dropped":
                held.clear()
            case "acknowledged":
                house.lender.settle(1, taken=True)
            case _:
                house.lender.give_back(1)
        assert house.read(loan) == bytes([1]) * MIB
    house.allotments.collect()
    assert base in {address_of(house.allotments.allocate(MIB)) for _ in range(2)}
    assert house.segments.held_bytes == MIB, "one is in use at a time, here"


def test_it_is_kept_while_any_one_form_of_it_lives(house: House) -> None:
    """A slice of an array over a view: whoever has it may read what the next payload overwrites."""
    made = house.make(7)
    base = address_of(made)
    part = np.frombuffer(made, np.uint8)[100:200].data
    del made
    assert address_of(house.make(8)) != base
    assert bytes(part) == bytes([7]) * 100
    del part
    assert house.num_dropped == 2
    house.allotments.collect()
    assert len(house.segments.free) == 2


@pytest.mark.parametrize("order", [("doomed", "dropped"), ("dropped", "doomed")], ids=">".join)
def test_a_lost_message_dooms_it_and_its_owner_keeps_it(
    order: tuple[str, ...], house: House
) -> None:
    """The receiver may have mapped it: never written again, and no name is left for others."""
    held = {"payload": house.make(3)}
    house.lend(1, held["payload"])
    for end in order:
        if end == "dropped":
            held.clear()
        else:
            house.lender.settle(1, taken=False)
    if held:
        assert bytes(held["payload"][:2]) == b"\3\3"
    house.allotments.collect()
    assert house.names() == set()
    assert (house.segments.held_bytes, house.segments.free) == (MIB * bool(held), [])


def test_what_was_doomed_is_copied_when_it_is_sent_again(house: House) -> None:
    """Its name is gone: another receiver could not open it."""
    made = house.make(3)
    house.lend(1, made)
    house.lender.settle(1, taken=False)
    assert house.names() == set()
    assert house.segments.held_bytes == MIB, "still here"
    again = house.lend(2, made)
    assert again.fresh is not None
    assert house.read(again) == bytes([3]) * MIB
    house.over(2)


def test_two_receivers_read_one_payload_and_one_of_them_fails(house: House) -> None:
    made = house.make(5)
    first, second = house.lend(1, made), house.lend(2, made, to="c")
    assert first.places == second.places
    del made
    house.allotments.collect()
    house.lender.settle(1, taken=False)
    assert house.read(second) == bytes([5]) * MIB, "not opened yet, perhaps"
    house.over(2)
    assert house.names() == set(), "doomed: never used again"


def test_a_receiver_that_restarts_dooms_what_it_had_taken(house: House) -> None:
    taken, waiting = house.make(1), house.make(2)
    house.lend(1, taken)
    loan = house.lend(2, waiting)
    house.lender.settle(1, taken=True)
    house.lender.peer_restarted("b")
    assert house.read(loan) == bytes([2]) * MIB, "sent again to the new one"
    assert house.names() == {loan.places[0].segment}
    assert bytes(taken[:1]) == b"\1"


def test_a_lease_that_ends_leaves_the_bytes_to_both_sides(house: House) -> None:
    made = house.make(6)
    loan = house.lend(1, made)
    with Borrower("run", lambda _: None, house.folder).reading(1) as opener:
        read = opener(loan.places[0].segment, 0, MIB)
    house.lender.settle(1, taken=True)
    house.now = 100.0
    house.lender.tick(house.now)
    assert house.names() == set()
    assert read == made


def test_a_payload_outlives_the_end_of_its_bus(house: House) -> None:
    made = house.make(2)
    house.lend(1, made)
    house.lender.close()
    assert house.names() == set()
    assert made == bytes([2]) * MIB
    made[:1] = b"z"
    after = house.allotments.allocate(MIB)
    assert house.names() == set(), "ordinary memory: nobody would remove its name"
    after[:1] = b"z"
    del made
    house.allotments.collect()
    assert house.names() == set()


def test_a_segment_made_while_the_bus_closes_leaves_no_name(house: House) -> None:
    """A trainer's thread exports while its process is told to stop."""
    segment = house.segments.take_held(MIB, 16 * MIB)
    assert segment is not None
    house.lender.close()
    assert house.segments.map(segment)
    assert house.names() == set()
    house.segments.let_go(segment)


def test_what_exceeds_the_limit_is_ordinary_memory_and_counted(tmp_path: Path) -> None:
    """Until something in use comes back; receivers count as users, too."""
    house = House(tmp_path, bytes_max=2 * MIB)
    one, two = house.make(1), house.make(2)
    house.lend(1, two)
    over = house.make(3)
    assert house.allotments.num_elsewhere == 1
    loan = house.lend(2, over)
    assert loan.fresh is not None, "sent as any other"
    assert house.read(loan) == bytes([3]) * MIB
    del two
    house.allotments.allocate(MIB)
    assert house.allotments.num_elsewhere == 2, "its receiver has it"
    house.over(1)
    base = address_of(one)
    del one
    assert address_of(house.allotments.allocate(2 * MIB)) != base
    assert house.allotments.num_elsewhere == 2
    house.lender.close()


def test_a_host_without_room_gives_ordinary_memory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    made = house.make(1)
    assert house.names() == set()
    assert (house.allotments.num_elsewhere, house.segments.held_bytes) == (1, 0)
    assert made.nbytes == MIB


def test_a_segment_that_cannot_be_named_is_no_room_either(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor left, or a /dev/shm that nobody may write: an export goes on all the same."""

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refused)
    made = house.make(1)
    assert (house.allotments.num_elsewhere, house.segments.held_bytes) == (1, 0)
    assert made.nbytes == MIB
    assert not house.lender.fill(house.lender.lend(1, [made], "b"))
    house.lender.withdraw(1)


def test_the_last_small_bucket_of_a_version_finds_its_memory_again(house: House) -> None:
    """A segment has a MiB at least, which is more than four times what lies in this one."""
    made = house.make(1, 100_000)
    base = address_of(made)
    del made
    assert address_of(house.make(2, 100_000)) == base
    assert house.segments.num_bytes == MIB


def test_small_payloads_are_not_worth_a_segment(house: House) -> None:
    assert house.make(1, 1000).nbytes == 1000
    assert house.make(1, 0).nbytes == 0
    assert house.names() == set()
    assert house.allotments.num_elsewhere == 0


def test_a_version_finds_the_memory_of_the_one_before_the_last(house: House) -> None:
    """As much as is in use is kept for the next one, however large, and the rest goes.

    Sizes are those of files with holes; what counts is their number.
    """
    size = POOL_BYTES_MAX // 2

    def version() -> list[memoryview]:
        return [sparse(house, size) for _ in range(4)]

    first, second = version(), version()
    places = {address_of(one) for one in first}
    first.clear()
    house.allotments.collect()
    assert len(house.segments.free) == 4
    third = version()
    assert {address_of(one) for one in third} == places
    second.clear()
    third.clear()
    house.allotments.collect()
    assert sum(one.size for one in house.segments.free) <= POOL_BYTES_MAX


def sparse(house: House, size: int) -> memoryview:
    """An allotment whose pages do not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda fd, _, length: os.ftruncate(fd, length))
        patch.setattr("milepost.messages.bus.segments.populate", lambda _: None)
        house.allotments._bytes_max = 1 << 40
        return house.allotments.allocate(size)


def test_threads_that_ask_and_let_go_never_share_memory(tmp_path: Path) -> None:
    """Exports, checkpoints and the loop do so at once; every payload keeps what was written."""
    house = House(tmp_path, bytes_max=8 * MIB)
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(40):
            made = house.allotments.allocate(MIB)
            made[:8] = made[-8:] = bytes([value]) * 8
            np.frombuffer(made, np.uint8)[MIB // 2] = value
            if {*made[:8], *made[-8:], made[MIB // 2]} != {value}:
                wrong.append(value)
            del made

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for number in range(100):
        house.lend(number, house.make(200))
        house.over(number)
    for thread in threads:
        thread.join()
    assert wrong == []
    house.allotments.collect()
    assert house.segments.held_bytes == 0
    house.lender.close()
    assert house.names() == set()
