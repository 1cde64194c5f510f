"""Who has the names of trained groups: the ledger for good, checkpoints until it does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from unit.rollout.kit import Play, settings

from milepost.actors.effects import Tell, WorkDone
from milepost.actors.rollout.bookkeeping import Bookkeeping, WriteRecords
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.records import (
    Checkpointed,
    Dropped,
    Issued,
    Stored,
    Trained,
    decode_record,
    encode_record,
)
from milepost.actors.rollout.resuming import LedgerAhead, LedgerBehind, resume
from milepost.messages.rollout import GroupsTrained, StoreRecovered
from milepost.messages.trainer import LedgerWritten


def trained_in_order(ledger: Ledger, count: int) -> Ledger:
    """One group a version, from version 1 on."""
    for at in range(count):
        name = f"g{at:07d}"
        ledger.apply(Issued(group=name, position=at))
        ledger.apply(Stored(groups=(name,)))
        ledger.apply(Trained(groups=(name,), step=at + 1))
    return ledger


def test_the_trainer_hears_what_the_journal_has_only_when_it_is_on_the_disk() -> None:
    book = Bookkeeping(trained_in_order(Ledger(), 63))
    assert book.flush() == []
    book.trained((), 64)
    (write,) = book.flush()
    assert isinstance(write, WriteRecords)
    assert write.sync
    assert book.written(WorkDone(write.key, None)) == [Tell("trainer-0", LedgerWritten(version=64))]
    assert book.written(WorkDone(write.key, None)) == []
    book.trained((), 65)
    (write,) = book.flush()
    assert isinstance(write, WriteRecords)
    assert not write.sync, "not at every step"


def test_a_batch_nobody_spoke_of_holds_back_what_is_said_of_later_ones() -> None:
    """The words of two batches may come in either order; a gap must not be called written."""
    ledger = trained_in_order(Ledger(), 3)
    ledger.heard_of(5)
    assert ledger.trained_through == 3
    ledger.heard_of(4)
    assert ledger.trained_through == 5
    assert ledger.snapshot().trained_through == 5


def test_what_the_buffer_says_after_a_restart_closes_the_gap() -> None:
    play = Play(settings(), trained_in_order(Ledger(), 1)).begin()
    play.hear("buffer", GroupsTrained(group_ids=(), step=2, version=3))
    assert play.ledger.trained_through == 1
    play.hear("buffer", StoreRecovered(stored=(), trained={"g0000000": 2}, groups_spent=1))
    assert play.ledger.trained_through == 3


def checkpoint(run_folder: Path, step: int, **fields: object) -> None:
    folder = run_folder / "checkpoints" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_bytes(msgspec.json.encode({"step": step, **fields}))


def test_a_resume_takes_the_names_of_checkpoint_and_ledger_together(tmp_path: Path) -> None:
    ledger = trained_in_order(Ledger(), 3)
    checkpoint(tmp_path, 4, trained_group_ids=["g0000003"], trained_before=3)
    resume(ledger, tmp_path, 4)
    assert ledger.num_trained == 4
    assert ledger.next_place().position == 4


def test_a_checkpoint_that_names_every_group_needs_no_journal(tmp_path: Path) -> None:
    """As all of them did before names were left to the ledger."""
    ledger = Ledger()
    checkpoint(tmp_path, 2, trained_group_ids=["g0000000", "g0000001"])
    resume(ledger, tmp_path, 2)
    assert (ledger.num_trained, ledger.position) == (2, 2)


def test_a_journal_that_lost_names_is_refused_and_trains_nothing_twice(tmp_path: Path) -> None:
    checkpoint(tmp_path, 4, trained_group_ids=["g0000003"], trained_before=3)
    with pytest.raises(LedgerBehind, match=r"counts 4 trained groups, .* knows of 1"):
        resume(Ledger(), tmp_path, 4)


def covered(count: int) -> Ledger:
    """A ledger whose only checkpoint covers all groups, so that it forgot their names."""
    ledger = trained_in_order(Ledger(checkpoints_named=1), count)
    ledger.apply(Checkpointed(step=count))
    return ledger


def test_a_run_that_begins_again_trains_every_prompt_again(tmp_path: Path) -> None:
    """Its weights never saw one, whether or not the ledger still has the names."""
    ledger = covered(3)
    ledger.apply(Issued(group="g0000003", position=3))
    ledger.apply(Dropped(group="g0000003", reason="stale", again=True, consumed=True))
    records = resume(ledger, tmp_path, 0)
    ledger.validate()
    assert ledger == Ledger(checkpoints_named=1)
    recovered = covered(3)
    for record in records:
        recovered.apply(decode_record(encode_record(record)))
    assert recovered == ledger, "the journal tells the same"


def test_a_checkpoint_older_than_the_names_of_the_ledger_is_refused(tmp_path: Path) -> None:
    """What was trained after it would count as trained, and those weights are gone."""
    checkpoint(tmp_path, 2, trained_group_ids=["g0000000", "g0000001"])
    with pytest.raises(LedgerAhead, match=r"counts 2 trained groups, .* of 4, .* put the newer"):
        resume(covered(4), tmp_path, 2)
