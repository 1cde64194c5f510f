"""Loans of shared memory: never written while somebody may read, never left behind."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from milepost.messages.bus.allotting import Allotments
from milepost.messages.bus.borrowing import Borrower, segment_prefix
from milepost.messages.bus.lending import Lender
from milepost.messages.bus.memmove import copy_unlocked
from milepost.messages.bus.segments import IDLE_S, POOL_BYTES_MAX, Segments
from milepost.messages.errors import ProtocolError

MIB = 1 << 20


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_lender(folder: Path, clock: Clock, bytes_max: int = 1 << 30) -> Lender:
    segments = Segments("run", clock, folder)
    return Lender(segments, Allotments(segments, bytes_max, lambda: None), clock, lease_s=100.0)


@pytest.fixture
def lender(tmp_path: Path, clock: Clock) -> Lender:
    return make_lender(tmp_path, clock)


def buffer(size: int, value: int = 1) -> memoryview:
    return memoryview(bytes([value]) * size)


def lend(lender: Lender, message_id: int, *buffers: memoryview) -> str:
    loan = lender.lend(message_id, buffers, "b")
    assert lender.fill(loan)
    assert loan.fresh is not None
    return loan.fresh.name


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_segment_is_used_again_only_when_acknowledged_and_given_back(lender: Lender) -> None:
    """In either order; one of the two is not enough: a repeat would carry other bytes."""
    first = lend(lender, 1, buffer(MIB))
    lender.give_back(1)
    assert lend(lender, 2, buffer(MIB)) != first, "not acknowledged: it may be sent again"
    lender.settle(2, taken=True)
    assert lend(lender, 3, buffer(MIB)) != first
    lender.settle(1, taken=True)
    assert lend(lender, 4, buffer(MIB)) == first


def test_a_message_given_up_dooms_its_segment(lender: Lender, tmp_path: Path) -> None:
    """The peer may have it mapped all the same: those bytes must never change."""
    name = lend(lender, 1, buffer(MIB))
    lender.settle(1, taken=False)
    assert names(tmp_path) == set()
    assert lend(lender, 2, buffer(MIB)) != name


def test_one_copy_serves_all_receivers_until_the_last_gave_it_back(
    lender: Lender, tmp_path: Path
) -> None:
    data = buffer(MIB), buffer(3)
    assert lend(lender, 1, *data) == lend(lender, 2, *data)
    assert len(names(tmp_path)) == 1
    for message_id in (1, 2):
        lender.settle(message_id, taken=True)
        assert lender.segments.free == []
        lender.give_back(message_id)
    assert len(lender.segments.free) == 1


def test_a_new_message_with_the_same_buffer_is_copied_again(lender: Lender) -> None:
    """After the first was taken its sender may have written into the buffer."""
    data = bytearray(b"a" * MIB)
    view = memoryview(data)
    first = lend(lender, 1, view)
    lender.settle(1, taken=True)
    data[:] = b"b" * MIB
    second = lend(lender, 2, view)
    assert second != first
    assert (lender.segments.folder / second).read_bytes()[:3] == b"bbb"


def test_one_receiver_that_fails_does_not_take_the_memory_from_another(
    lender: Lender, tmp_path: Path
) -> None:
    data = buffer(MIB)
    lend(lender, 1, data)
    name = lend(lender, 2, data)
    lender.settle(1, taken=False)
    assert names(tmp_path) == {name}, "message 2 may not have been opened yet"
    lender.settle(2, taken=True)
    lender.give_back(2)
    assert names(tmp_path) == set(), "doomed: never used again"


def test_what_a_restarted_peer_had_taken_is_not_waited_for(lender: Lender, tmp_path: Path) -> None:
    """It died with its mappings; what it had not taken is sent again, by the same name."""
    lend(lender, 1, buffer(MIB))
    second = lend(lender, 2, buffer(2 * MIB))
    lender.settle(1, taken=True)
    lender.peer_restarted("another")
    assert len(lender.loans) == 2
    lender.peer_restarted("b")
    assert names(tmp_path) == {second}
    assert list(lender.loans) == [2]


def test_a_lease_that_ends_removes_the_name_and_never_the_bytes(
    lender: Lender, tmp_path: Path, clock: Clock
) -> None:
    name = lend(lender, 1, buffer(MIB, 7))
    borrower = Borrower("run", lambda _: None, tmp_path)
    with borrower.reading(1) as opener:
        held = opener(name, 0, MIB)
    lender.settle(1, taken=True)
    assert lender.due == 100.0
    clock.now = 100.0
    lender.tick(clock.now)
    assert names(tmp_path) == set()
    lend(lender, 2, buffer(MIB, 9))
    assert held == buffer(MIB, 7)
    lender.give_back(1)


def test_idle_segments_go_after_a_while_and_the_pool_is_bounded(
    lender: Lender, tmp_path: Path, clock: Clock
) -> None:
    sizes = [POOL_BYTES_MAX // 2, POOL_BYTES_MAX // 4, POOL_BYTES_MAX // 2]
    for message_id, size in enumerate(sizes):
        segment = lender.lend(message_id, [buffer(MIB)], "b").segments[0]
        segment.size = size
        assert lender.segments.map(segment)
        lender.settle(message_id, taken=True)
        lender.give_back(message_id)
        segment.idle_since = clock.now
    assert lender.segments.num_bytes <= POOL_BYTES_MAX
    clock.now = IDLE_S
    lender.tick(clock.now)
    assert names(tmp_path) == set()


def test_a_host_without_room_is_noticed_before_a_byte_is_written(
    lender: Lender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full /dev/shm would kill the process at the first write (SIGBUS)."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    loan = lender.lend(1, [buffer(MIB)], "b")
    assert not lender.fill(loan)
    assert names(tmp_path) == set()
    lender.withdraw(1)
    assert lender.loans == {}


def test_closing_removes_every_name(lender: Lender, tmp_path: Path) -> None:
    lend(lender, 1, buffer(MIB))
    lend(lender, 2, buffer(2 * MIB))
    lender.settle(1, taken=True)
    lender.give_back(1)
    assert len(names(tmp_path)) == 2
    assert all(name.startswith(segment_prefix("run")) for name in names(tmp_path))
    lender.close()
    assert names(tmp_path) == set()


def test_a_message_is_given_back_when_the_last_view_of_it_is_gone(
    lender: Lender, tmp_path: Path
) -> None:
    back: list[object] = []
    borrower = Borrower("run", back.append, tmp_path)
    name = lend(lender, 1, buffer(MIB, 3), buffer(100, 4))
    with borrower.reading("message 1") as opener:
        one, other = opener(name, 0, MIB), opener(name, MIB, 100)
    assert (one[5], other[5]) == (3, 4)
    assert borrower.num_mapped == 1
    part = one[10:20]
    del opener, one, other
    gc.collect()
    assert back == []
    assert part == bytes([3]) * 10
    del part
    gc.collect()
    assert back == ["message 1"]
    assert borrower.num_mapped == 0


def test_a_reader_cannot_write(lender: Lender, tmp_path: Path) -> None:
    """Another engine reads the same segment, and it may be sent on as it is."""
    name = lend(lender, 1, buffer(MIB, 3))
    with Borrower("run", lambda _: None, tmp_path).reading(1) as opener:
        view = opener(name, 0, MIB)
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 99


def test_a_message_in_two_segments_is_given_back_once_when_both_are_gone(
    lender: Lender, tmp_path: Path
) -> None:
    back: list[object] = []
    borrower = Borrower("run", back.append, tmp_path)
    first, second = lend(lender, 1, buffer(MIB, 1)), lend(lender, 2, buffer(MIB, 2))
    with borrower.reading("both") as opener:
        one, other = opener(first, 0, MIB), opener(second, 0, MIB)
    del opener, one
    gc.collect()
    assert back == []
    assert other[0] == 2
    del other
    gc.collect()
    assert back == ["both"]


def test_a_message_that_refers_to_no_memory_gives_nothing_back(tmp_path: Path) -> None:
    back: list[object] = []
    with Borrower("run", back.append, tmp_path).reading(1):
        pass
    assert back == []


def test_what_was_lent_is_sent_on_without_a_copy_and_outlives_the_first_lender(
    lender: Lender, tmp_path: Path, clock: Clock
) -> None:
    """The publisher passes a bucket of weights from the trainer to the engines."""
    between = make_lender(tmp_path, clock)
    back: list[object] = []
    borrower = Borrower("run", back.append, tmp_path)
    name = lend(lender, 1, buffer(3 * MIB, 3), buffer(MIB, 4), buffer(10, 5))
    with borrower.reading(1) as opener:
        views = [opener(name, 0, 3 * MIB), opener(name, 3 * MIB, MIB), opener(name, 4 * MIB, 10)]
    loan = between.lend(7, views, "c")
    assert between.fill(loan)
    assert [place.offset for place in loan.places] == [0, 3 * MIB, 0]
    assert loan.places[0].segment == loan.places[1].segment != name
    assert between.segments.num_bytes == MIB, "only the small one was copied"
    del views, opener
    gc.collect()
    assert back == [], "our own loan still needs it"
    lender.close()
    with borrower.reading(2) as opener:
        last = opener(loan.places[1].segment, loan.places[1].offset, MIB)
    assert last == buffer(MIB, 4)
    between.settle(7, taken=True)
    between.give_back(7)
    gc.collect()
    assert back == [1]
    assert last == buffer(MIB, 4)
    between.close()
    assert names(tmp_path) == set()


def test_what_cannot_be_named_again_is_copied(lender: Lender, tmp_path: Path, clock: Clock) -> None:
    """The first lender removed its name already; the bytes are still there to be copied."""
    between = make_lender(tmp_path, clock)
    name = lend(lender, 1, buffer(MIB, 3))
    with Borrower("run", lambda _: None, tmp_path).reading(1) as opener:
        view = opener(name, 0, MIB)
    lender.close()
    loan = between.lend(7, [view], "c")
    assert between.fill(loan)
    assert between.segments.num_bytes == MIB
    between.close()


@pytest.mark.parametrize(
    ("name", "offset", "text"),
    [
        ("milepost-other-1", 0, "is not of this run"),
        ("milepost-run-/../../etc/passwd", 0, "is not of this run"),
        ("milepost-run-missing", 0, "is gone: No such file"),
        ("milepost-run-link", 0, "is gone: Too many levels of symbolic links"),
        ("milepost-run-empty", 0, "cannot be mapped"),
        ("milepost-run-page", 4090, "bulk ends at byte 4100 of shared memory .*, which has 4096"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(
    tmp_path: Path, name: str, offset: int, text: str
) -> None:
    (tmp_path / "milepost-run-empty").touch()
    (tmp_path / "milepost-run-page").write_bytes(bytes(4096))
    (tmp_path / "milepost-run-link").symlink_to(tmp_path / "milepost-run-page")
    borrower = Borrower("run", lambda _: None, tmp_path)
    with pytest.raises(ProtocolError, match=text), borrower.reading(1) as opener:
        opener(name, offset, 10)


def test_the_copy_is_exact_and_stays_inside(lender: Lender) -> None:
    segment = lender.lend(1, [buffer(MIB)], "b").segments[0]
    assert lender.segments.map(segment)
    target = segment.mapping
    assert target is not None
    copy_unlocked(target, 5, memoryview(b"hello"))
    copy_unlocked(target, 0, memoryview(b""))
    assert target[4:11] == b"\0hello\0"
    for offset in (-1, MIB - 4):
        with pytest.raises(ValueError, match="do not fit"):
            copy_unlocked(target, offset, memoryview(b"hello"))
