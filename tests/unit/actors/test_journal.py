"""Journals survive kill -9 at any byte, and never pass damage off as the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.actors.journal import (
    HEADER,
    JournalDamaged,
    JournalFile,
    frame,
    read_records,
    replace_file,
)

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, *payloads: bytes) -> None:
    journal = JournalFile(path)
    journal.append(payloads)
    journal.close()


@given(st.lists(st.binary(max_size=50), max_size=8))
@SAME_FOLDER
def test_records_come_back_in_order(tmp_path: Path, payloads: list[bytes]) -> None:
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    write(path, *payloads)
    assert list(read_records(path)) == payloads


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "none")) == []


@pytest.mark.parametrize("cut", range(1, HEADER.size + 6))
def test_a_torn_tail_is_cut_off_wherever_the_process_died(tmp_path: Path, cut: int) -> None:
    """The last record is half written; everything before it counts, and appending goes on."""
    path = tmp_path / "journal"
    write(path, b"first", b"second")
    path.write_bytes(path.read_bytes()[:-cut])
    assert list(read_records(path)) == [b"first"]
    write(path, b"third")
    assert list(read_records(path)) == [b"first", b"third"]


def test_a_bad_record_with_good_ones_behind_it_is_damage(tmp_path: Path) -> None:
    """Dropping what follows in silence would lose groups that were promised to be kept."""
    path = tmp_path / "journal"
    write(path, b"first", b"second", b"third")
    data = bytearray(path.read_bytes())
    data[len(frame(b"first")) + HEADER.size] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=r"journal: the record at byte .* fails its checksum"):
        list(read_records(path))


def test_a_replaced_journal_holds_the_new_records_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, b"old", b"older")
    replace_file(path, [b"new"])
    assert list(read_records(path)) == [b"new"]
    assert [child.name for child in tmp_path.iterdir()] == ["journal"]


def test_a_replacement_that_was_interrupted_leaves_the_old_journal(tmp_path: Path) -> None:
    """The half-made new file of a killed process is no obstacle to the next try."""
    path = tmp_path / "journal"
    write(path, b"old")
    path.with_suffix(".new").write_bytes(b"half")
    assert list(read_records(path)) == [b"old"]
    replace_file(path, [b"new"])
    assert list(read_records(path)) == [b"new"]
