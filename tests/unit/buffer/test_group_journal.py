"""The buffer's journal on a real disk: kill -9 loses no group, a resume trains none twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
from unit.buffer.kit import group

from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.journal import GroupJournal, decode_group, encode_group
from milepost.actors.buffer.marks import Covered, Gone, Handed, Spent
from milepost.messages.bulk import Bulk

MEBIBYTE = 1 << 20


def opened(folder: Path, bytes_max: int = 64 * MEBIBYTE) -> GroupJournal:
    return GroupJournal(folder, bytes_max, checkpoints_named=2)


def spent(step: int, *names: str) -> Spent:
    return Spent(step=step, version=step + 1, groups=names)


def names(groups: list[StoredGroup]) -> list[str]:
    return [each.group_id for each in groups]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("groups.*"))


def test_a_group_comes_back_with_every_byte() -> None:
    whole = group("g0", 3, 4, rewards=(0.25, 1.0))
    assert decode_group(encode_group(whole)) == whole
    routes = Bulk("uint8", (2, 3, 2), bytes(range(12)))
    rows = [msgspec.structs.replace(row, routes=routes) for row in whole.trajectories]
    routed = dataclasses.replace(whole, trajectories=tuple(rows))
    assert decode_group(encode_group(routed)) == routed


def test_groups_without_a_fate_wait_to_be_trained(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for name in ("g0", "g1", "g2", "g3"):
        journal.keep(group(name, 0))
    journal.write((spent(0, "g1"), Gone(group="g2", reason="stale")))
    journal.close()
    again = opened(tmp_path)
    assert names(again.recover(groups_max=9)) == ["g0", "g3"]
    assert again.fates.num_spent == 1
    again.close()


def test_a_half_written_group_is_no_group(tmp_path: Path) -> None:
    """The process died in the middle of a write: nobody was told of that group."""
    journal = opened(tmp_path)
    for name in ("g0", "g1"):
        journal.keep(group(name, 0))
    journal.close()
    path = tmp_path / "groups.000001"
    path.write_bytes(path.read_bytes()[:-3])
    again = opened(tmp_path)
    assert names(again.recover(groups_max=9)) == ["g0"]
    again.close()


def test_no_more_groups_come_back_than_there_is_room_for_but_for_handed_ones(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path)
    for name in ("g0", "g1", "g2", "g3"):
        journal.keep(group(name, 0))
    journal.write((Handed(step=0, version=0, groups=("g3",)),))
    journal.close()
    again = opened(tmp_path)
    assert names(again.recover(groups_max=2)) == ["g0", "g1", "g3"]
    again.close()


def test_a_resume_trains_again_what_the_checkpoint_does_not_have(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for at, name in enumerate(("g0", "g1", "g2")):
        journal.keep(group(name, 0))
        journal.write((spent(at, name),))
    journal.close()
    again = opened(tmp_path)
    again.go_on_from(1, groups_max=9)
    assert names(again.recover(groups_max=9)) == ["g1", "g2"]
    again.close()


def test_batches_below_the_checkpoint_were_trained_whether_or_not_anybody_wrote_it_down(
    tmp_path: Path,
) -> None:
    """Checkpoint 1 exists, so the batch on top of version 0 was trained; word of it was lost."""
    journal = opened(tmp_path)
    journal.keep(group("g0", 0))
    journal.write((Handed(step=0, version=0, groups=("g0",)),))
    journal.close()
    again = opened(tmp_path)
    again.go_on_from(1, groups_max=9)
    assert again.recover(groups_max=9) == []
    assert again.fates.trained == {"g0": 1}
    again.close()


def test_tokens_of_a_version_that_is_never_made_are_forgotten_for_good(tmp_path: Path) -> None:
    """Version 3 of the dead timeline is not version 3 of the resumed one."""
    journal = opened(tmp_path)
    journal.keep(group("old", 1))
    journal.keep(group("new", 1, 3))
    journal.close()
    resumed = opened(tmp_path)
    resumed.go_on_from(2, groups_max=9)
    assert names(resumed.recover(groups_max=9)) == ["old"]
    resumed.close()
    restarted = opened(tmp_path)
    assert names(restarted.recover(groups_max=9)) == ["old"]
    restarted.close()


def test_files_go_when_no_checkpoint_can_ask_for_them_and_nothing_comes_back_to_life(
    tmp_path: Path,
) -> None:
    """A name forgotten while its group is still in a file would be trained a second time."""
    journal = opened(tmp_path, bytes_max=8)
    for at in range(4):
        journal.keep(group(f"g{at}", 0))
        journal.write((spent(at, f"g{at}"),))
    journal.keep(group("waiting", 0))
    for version in (3, 4):
        journal.cover((Covered(version=version),))
    assert len(files(tmp_path)) <= 2
    journal.close()
    again = opened(tmp_path, bytes_max=8)
    assert names(again.recover(groups_max=9)) == ["waiting"]
    assert again.fates.num_spent == 4
    again.close()


def test_over_its_bound_the_journal_gives_up_trained_groups_first(tmp_path: Path) -> None:
    journal = opened(tmp_path, bytes_max=4_000)
    journal.keep(group("waits", 0))
    for at in range(40):
        journal.keep(group(f"g{at}", 0))
        journal.write((spent(at, f"g{at}"),))
    assert sum(path.stat().st_size for path in tmp_path.glob("groups.*")) < 6_000
    journal.close()
    again = opened(tmp_path, bytes_max=4_000)
    assert names(again.recover(groups_max=9)) == ["waits"]
    again.close()


def test_marks_are_compacted_into_one_that_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.actors.buffer.journal.MARKS_BYTES_MAX", 100)
    journal = opened(tmp_path)
    for at in range(20):
        journal.keep(group(f"g{at}", 0))
        journal.write((spent(at, f"g{at}"),))
    journal.cover((Covered(version=19),))
    before = journal.fates
    journal.close()
    assert (tmp_path / "marks").stat().st_size < 1_000
    again = opened(tmp_path)
    assert again.fates == before
    again.close()
