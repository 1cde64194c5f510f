"""One writer's files: a chain over restarts and files, a bound, and a disk that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.archive.kit import author, came, judged, row

from milepost.actors.archive.audit import audit
from milepost.actors.archive.chain import Chain
from milepost.actors.archive.index import Index, IndexLocked
from milepost.actors.archive.layout import Kind
from milepost.actors.archive.reader import Archive, Query
from milepost.actors.archive.segments import SegmentFile, segments_of
from milepost.actors.archive.writer import ArchiveWriter


def kinds(folder: Path) -> list[Kind]:
    """Of all records of the buffer, in order."""
    chain = Chain(folder / "archive" / "buffer", "buffer")
    found = [record.kind for _, record, _ in chain.records()]
    assert chain.faults == []
    return found


def test_a_killed_writer_s_tail_is_passed_and_its_chain_goes_on(tmp_path: Path) -> None:
    """The next process reads where the chain ends, begins a new file, and says what was torn."""
    first = ArchiveWriter(author(tmp_path))
    first.write([came(row("g0.0"))])
    path = tmp_path / "archive" / "buffer" / "000001.log"
    whole = path.stat().st_size
    first.write([came(row("g0.1"))])
    path.write_bytes(path.read_bytes()[: whole + 30])
    first._end_file()
    second = ArchiveWriter(author(tmp_path, incarnation=1))
    second.write([came(row("g0.1"))])
    second.close()
    assert kinds(tmp_path) == [Kind.OPENED, Kind.ARRIVED, Kind.OPENED, Kind.ARRIVED, Kind.CLOSED]
    report = audit(tmp_path)
    assert report.faults == []
    assert "30 bytes are no whole record" in report.notes[0]
    assert "killed after its record 1" in report.notes[1]


def test_files_are_ended_by_size_and_the_chain_goes_on(tmp_path: Path) -> None:
    """A file that has its size is synced and closed; the next one follows from it."""
    writer = ArchiveWriter(author(tmp_path), segment_bytes_max=4000)
    for number in range(12):
        writer.write([came(row(f"g{number}.0"))])
    writer.close()
    assert len(segments_of(tmp_path / "archive" / "buffer")) > 3
    assert kinds(tmp_path).count(Kind.ARRIVED) == 12
    assert audit(tmp_path).faults == []
    with Archive.open(tmp_path) as archive:
        assert archive.count(Query()) == 12
        assert archive.read("g7.0").trajectory.token_ids == row("g7.0").token_ids


def test_the_oldest_files_go_and_a_record_says_so(tmp_path: Path) -> None:
    """What was removed is in no list any more, and its absence is no fault."""
    writer = ArchiveWriter(author(tmp_path), segment_bytes_max=4000)
    with Index(tmp_path) as index:
        for number in range(12):
            writer.write([came(row(f"g{number}.0")), judged(row(f"g{number}.0"))])
        index.catch_up()
        removed = writer.oldest(8000)
        assert removed is not None
        assert removed.num_trajectories > 0
        before = writer.num_bytes
        writer.write([(removed, None)])
        writer.unlink(removed)
        assert writer.num_bytes < before
        index.catch_up()
    writer.close()
    report = audit(tmp_path)
    assert report.faults == []
    assert f"{removed.num_trajectories} trajectories were removed" in str(report.notes)
    with Archive.open(tmp_path) as archive:
        assert archive.count(Query()) == 12 - removed.num_trajectories
        assert archive.count(Query(text="g0.0")) == 0


def test_a_file_that_cannot_be_removed_is_counted_and_tried_again(tmp_path: Path) -> None:
    """Else the archive outgrows its bound by a file that nobody knows of any more."""
    writer = ArchiveWriter(author(tmp_path), segment_bytes_max=4000)
    for number in range(12):
        writer.write([came(row(f"g{number}.0"))])
    removed = writer.oldest(1)
    assert removed is not None
    (number, path), *_ = segments_of(tmp_path / "archive" / "buffer")
    assert removed.segments == (number,)
    before = writer.num_bytes
    path.rename(tmp_path / "away")
    path.mkdir()
    with pytest.raises(OSError, match=str(path)):
        writer.unlink(removed)
    assert writer.num_bytes == before
    path.rmdir()
    writer.unlink(removed)
    assert writer.num_bytes < before
    writer.close()


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a record would hide all later ones from a reader that trusts lengths."""
    writer = ArchiveWriter(author(tmp_path))
    writer.write([came(row("g0.0"))])
    path = tmp_path / "archive" / "buffer" / "000001.log"
    before = path.read_bytes()

    class Full:
        """A file that takes ten bytes more."""

        def __init__(self, file: object) -> None:
            self.file, self.room = file, 10

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(28, "No space left on device")
            taken, self.room = self.file.write(data[: self.room]), 0  # type: ignore[attr-defined]
            return int(taken)

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    segment = writer._file
    assert isinstance(segment, SegmentFile)
    real = segment._file
    monkeypatch.setattr(segment, "_file", Full(real))
    with pytest.raises(OSError, match="No space left"):
        writer.write([came(row("g0.1"))])
    assert path.read_bytes() == before
    monkeypatch.setattr(segment, "_file", real)
    writer.write([came(row("g0.1"))])
    writer.close()
    assert kinds(tmp_path) == [Kind.OPENED, Kind.ARRIVED, Kind.ARRIVED, Kind.CLOSED]


def test_one_process_writes_the_index(tmp_path: Path) -> None:
    """A reader of a live run finds the lock taken, and reads what is there."""
    writer = ArchiveWriter(author(tmp_path))
    writer.write([came(row("g0.0"))])
    with Index(tmp_path) as index:
        index.catch_up()
        writer.write([came(row("g0.1"))])
        with pytest.raises(IndexLocked):
            Index(tmp_path)
        with Archive.open(tmp_path) as archive:
            assert archive.count(Query()) == 1
            assert not archive.is_current
            index.catch_up()
            assert archive.count(Query()) == 2
    writer.close()


@pytest.mark.parametrize("harm", ["removed", "damaged", "cut"])
def test_an_index_that_is_lost_is_made_again(tmp_path: Path, harm: str) -> None:
    """It follows from the records; nobody has to repair anything."""
    writer = ArchiveWriter(author(tmp_path))
    writer.write([came(row("g0.0")), judged(row("g0.0"))])
    writer.close()
    with Archive.open(tmp_path) as archive:
        before = archive.select(Query(), limit=5)
    path = tmp_path / "archive" / "index.sqlite"
    match harm:
        case "removed":
            path.unlink()
        case "damaged":
            path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])
        case _:
            path.write_bytes(path.read_bytes()[:1000])
    with Archive.open(tmp_path) as archive:
        assert archive.select(Query(), limit=5) == before != []


def test_a_copy_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    """An archive on a read-only disk, or another user's, opens all the same."""
    writer = ArchiveWriter(author(tmp_path))
    writer.write([came(row("g0.0"))])
    writer.close()
    with Archive.open(tmp_path):
        pass
    folder = tmp_path / "archive"
    places = [folder, *folder.iterdir()]
    for place in places:
        place.chmod(place.stat().st_mode & ~0o222)
    try:
        with Archive.open(tmp_path) as archive:
            assert archive.count(Query()) == 1
    finally:
        for place in places:
            place.chmod(place.stat().st_mode | 0o200)
