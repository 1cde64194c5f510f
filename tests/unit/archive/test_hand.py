"""The thread that writes: bounded, in order, and honest about what it could not write."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from unit.archive.kit import author, came, row

from milepost.actors.archive import hand as hands
from milepost.actors.archive import schema
from milepost.actors.archive.audit import audit
from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.index import Index
from milepost.actors.archive.layout import Missed
from milepost.actors.archive.orders import Known, Missing, Order
from milepost.actors.archive.reader import Archive, Query
from milepost.actors.archive.segments import segments_of
from milepost.actors.archive.writer import ArchiveWriter, Said
from milepost.configs.run import ArchiveConfig


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more orders."""
    monkeypatch.setattr(hands, "LINGER_S", 0.0)


def order(name: str, num_bytes: int = 100, gate: threading.Event | None = None) -> Order:
    """Write one trajectory, once the gate is open."""

    def make(known: Known) -> Iterator[Said]:
        if gate is not None:
            assert gate.wait(60.0)
        one = row(name)
        if known.is_new(one.certificate.seal):
            yield came(one)

    return Order(make, num_bytes, (name,))


def config(**fields: Any) -> ArchiveConfig:
    return ArchiveConfig(**fields)


def test_everything_ordered_is_written_by_the_end_in_order(tmp_path: Path) -> None:
    """Closing waits for what was ordered; twice the same trajectory is one."""
    hand = ArchiveHand(author(tmp_path), config(), keeps_index=True)
    for number in range(50):
        hand.put(order(f"g{number:02d}.0"))
        hand.put(order(f"g{number:02d}.0"))
    hand.close(60.0)
    with Archive.open(tmp_path) as archive:
        names = [each.trajectory_id for each in archive.select(Query(), limit=100)]
    assert names == [f"g{number:02d}.0" for number in range(50)]
    assert hand.state.records == 51
    assert (hand.state.missed, hand.state.waiting, hand.state.index) == (0, 0, "")
    assert audit(tmp_path).faults == []


KILLED = """
import asyncio, os, signal
from unit.archive.kit import author, row
from unit.archive.test_hand import config, order
from pathlib import Path
from milepost.actors.archive import hand as hands
hands.LINGER_S = 600.0
hand = hands.ArchiveHand(author(Path({folder!r})), config(), keeps_index=True)
asyncio.run(hand.begin())
hand.put(order("g0.0"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_before_its_first_order_is_written_was_there(
    tmp_path: Path,
) -> None:
    """What it had taken in comes from the journal later, and nobody took a conversation away."""
    ArchiveHand(author(tmp_path), config(), keeps_index=True).close(60.0)
    script = KILLED.format(folder=str(tmp_path))
    found = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", script], env=found, check=False, timeout=60.0)
    assert ended.returncode == -signal.SIGKILL
    hand = ArchiveHand(author(tmp_path, incarnation=1), config(), keeps_index=True)
    bare = msgspec.structs.replace(row("g0.0"), conversation=None)
    hand.put(Order(lambda _: [came(bare)], 100, ("g0.0",)))
    hand.close(60.0)
    report = audit(tmp_path)
    assert report.faults == []
    assert "1 rows are without the conversation" in str(report.notes)


def test_a_process_goes_on_where_its_first_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that refuses is no news to wait for, one that hangs is waited for until a deadline."""
    gate = threading.Event()

    def begins(*_: object) -> None:
        assert gate.wait(60.0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ArchiveWriter, "_begin", begins)
    hand = ArchiveHand(author(tmp_path), config())
    asyncio.run(hand.begin(0.01))
    assert "its first record was not written within 0.01 s" in capsys.readouterr().err
    gate.set()
    asyncio.run(hand.begin(60.0))
    assert "no file could be begun: [Errno 28]" in capsys.readouterr().err
    monkeypatch.undo()
    hand.put(order("g0.0"))
    hand.close(60.0)
    assert (hand.state.missed, audit(tmp_path).faults) == (0, [])


def test_what_finds_no_room_is_counted_and_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A disk slower than the run costs records, never memory and never the run's time."""
    gate = threading.Event()
    bound = 1 << 20
    hand = ArchiveHand(author(tmp_path), config(waiting_bytes_max=bound), keeps_index=True)
    hand.put(order("held", 10, gate))
    for number in range(4):
        hand.put(order(f"g{number}.0", bound // 2 + 1))
    gate.set()
    hand.close(60.0)
    report = audit(tmp_path)
    assert report.faults == []
    assert hand.state.missed == report.num_missed > 0
    assert hand.state.reason.startswith("archive.waiting_bytes_max is reached")
    assert "g3.0" in str(report.notes)


def test_a_disk_that_refuses_for_a_while_costs_only_that_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record after it says how many are missing, why, and which."""
    real = ArchiveWriter.write
    refused = threading.Event()

    def write(self: ArchiveWriter, said: Any) -> Any:
        names = [getattr(head, "trajectory_id", "") for head, _ in said]
        if "bad.0" in names:
            refused.set()
            raise OSError(28, "No space left on device")
        return real(self, said)

    monkeypatch.setattr(ArchiveWriter, "write", write)
    hand = ArchiveHand(author(tmp_path), config(), keeps_index=True)
    hand.put(order("bad.0"))
    assert refused.wait(60.0)
    hand.put(order("good.0"))
    hand.close(60.0)
    report = audit(tmp_path)
    assert report.faults == []
    assert report.num_missed == 1
    assert "No space left on device (bad.0)" in str(report.notes)
    with Archive.open(tmp_path) as archive:
        assert archive.count(Query()) == 1


@pytest.mark.parametrize("full", ["remove_oldest", "stop"])
def test_the_bound_on_disk_holds(tmp_path: Path, full: str) -> None:
    """The newest stay, or the first do; what is missing is told, and nothing is wrong."""
    bound = 1 << 20
    hand = ArchiveHand(author(tmp_path, bytes_max=bound), config(full=full), keeps_index=True)
    for number in range(60):
        hand.put(_large(f"g{number:02d}.0", number))
    hand.close(60.0)
    used = sum(path.stat().st_size for path in (tmp_path / "archive" / "buffer").iterdir())
    assert used < bound
    report = audit(tmp_path)
    assert report.faults == []
    with Archive.open(tmp_path) as archive:
        names = [each.trajectory_id for each in archive.select(Query(), limit=100)]
    assert 0 < len(names) < 60
    if full == "stop":
        assert names[0] == "g00.0"
        assert hand.state.missed == 60 - len(names)
    else:
        assert names[-1] == "g59.0"
        assert "were removed to stay below" in str(report.notes)


def _large(name: str, number: int) -> Order:
    noise = Random(number).randbytes(25_000).hex()
    one = row(name, metadata={"noise": noise, "session": "session-0"})
    return Order(lambda _: [came(one)], len(noise), (name,))


def test_a_missed_record_is_named_up_to_a_bound() -> None:
    """A disk that is full for days must not fill memory with names."""
    missing = Missing()
    for number in range(1000):
        missing.add(1, [f"g{number}.0"], "full")
    ((head, _),) = missing.told()
    assert isinstance(head, Missed)
    assert (head.count, len(head.names)) == (1000, 256)


def test_an_index_that_fails_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only repeats what the records say: they are written without it, and it is made later."""

    def fail(self: Index, key: str) -> bool:
        raise sqlite3.DatabaseError(f"database disk image is malformed: {self}, {key}")

    monkeypatch.setattr(Index, "knows", fail)
    hand = ArchiveHand(author(tmp_path), config(), keeps_index=True)
    for name in ("a.0", "b.0"):
        hand.put(order(name))
    hand.close(60.0)
    assert (hand.state.missed, hand.state.waiting) == (0, 0)
    with Archive.open(tmp_path) as archive:
        assert [each.trajectory_id for each in archive.select(Query(), limit=9)] == ["a.0", "b.0"]


def test_a_file_that_its_writer_removes_meanwhile_does_not_stop_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer stays below its bound by itself, while the buffer reads its files."""
    hand = ArchiveHand(author(tmp_path), config())
    hand.put(order("a.0"))
    hand.close(60.0)

    def with_ghost(folder: Path) -> list[tuple[int, Path]]:
        return [*segments_of(folder), (99, folder / "000099.log")]

    monkeypatch.setattr("milepost.actors.archive.index.segments_of", with_ghost)
    with Index(tmp_path) as index:
        assert index.catch_up() > 0
        assert index.waiting() == [("a", row("a.0").certificate.seal)]


def test_what_a_dying_thread_held_is_counted_with_all_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours ends the thread; the trajectories it took with it were in no figure."""
    deaths: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", deaths.append)
    gate = threading.Event()

    def fail(_known: Known) -> list[Said]:
        gate.wait(60)
        raise RuntimeError("a mistake of ours")

    hand = ArchiveHand(author(tmp_path), config())
    hand.put(Order(fail, 10, ("a.0",)))
    hand.put(order("b.0"))
    gate.set()
    hand.close(60.0)
    assert [each.exc_type for each in deaths] == [RuntimeError]
    hand.put(order("c.0"))
    assert (hand.state.missed, hand.state.waiting, hand.state.reason) == (3, 0, hands.DIED)
    assert "a.0" in str(audit(tmp_path).notes), "the archive itself says what is missing"


def pages_of(path: Path, table: str) -> list[int]:
    with closing(sqlite3.connect(path)) as base:
        found = base.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = ?", (table,))
        return [number for (number,) in found]


def damage(folder: Path) -> Path:
    """Spoil the pages of one table; version and layout still look right."""
    path = folder / "archive" / "index.sqlite"
    data = bytearray(path.read_bytes())
    for number in pages_of(path, "trajectories"):
        data[(number - 1) * 4096 : number * 4096] = b"\xa5" * 4096
    path.write_bytes(data)
    return path


def test_an_index_that_is_damaged_inside_is_made_again_by_who_reads(tmp_path: Path) -> None:
    """It failed at the first new record of every later time, and never got better."""
    for names in (("a.0", "b.0"), ("c.0",)):
        hand = ArchiveHand(author(tmp_path), config())
        for name in names:
            hand.put(order(name))
        hand.close(60.0)
        if names[0] == "a.0":
            Archive.open(tmp_path).close()
            damage(tmp_path)
    with Archive.open(tmp_path) as archive:
        found = [each.trajectory_id for each in archive.select(Query(), limit=9)]
        assert (sorted(found), archive.is_current) == (["a.0", "b.0", "c.0"], True)


def test_an_index_that_is_damaged_inside_is_made_again_by_who_writes(tmp_path: Path) -> None:
    for names in (("a.0",), ("b.0",), ("c.0",)):
        hand = ArchiveHand(author(tmp_path), config(), keeps_index=True)
        for name in names:
            hand.put(order(name))
        hand.close(60.0)
        assert hand.state.missed == 0
        if names[0] == "a.0":
            path = damage(tmp_path)
    with closing(sqlite3.connect(path)) as base:
        assert base.execute("PRAGMA quick_check").fetchone() == ("ok",)
        assert base.execute("SELECT count(*) FROM trajectories").fetchone() == (3,)


def test_an_index_that_somebody_keeps_locked_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was removed under the hands of whoever had it."""
    monkeypatch.setattr(schema, "BUSY_MS", 1)
    path = tmp_path / "index.sqlite"
    with closing(schema.open_for_writing(path)) as base:
        base.execute("PRAGMA locking_mode = EXCLUSIVE")
        base.execute("BEGIN EXCLUSIVE")
        inode = path.stat().st_ino
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            schema.open_for_writing(path)
        assert path.stat().st_ino == inode
