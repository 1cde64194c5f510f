"""The ledger: issued = trained + dropped + in flight, in memory and read back from its journal."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.rollout.ledger import Ledger, Place, group_name, place_of
from milepost.actors.rollout.records import (
    Checkpointed,
    Dropped,
    Issued,
    Lost,
    Recalled,
    Record,
    Resumed,
    Stored,
    Trained,
    decode_record,
    encode_record,
)


def issue(ledger: Ledger) -> Record:
    place = ledger.next_place()
    return Issued(group=group_name(place), position=place.position, retry=place.retry)


def random_history(random: Random, length: int) -> tuple[Ledger, list[Record]]:
    """Records that can be true of one another, and the ledger they make."""
    ledger, records = Ledger(), []
    for _ in range(length):
        choices: list[Record] = [issue(ledger), Checkpointed(step=random.randrange(9))]
        for name in (*ledger.open, *ledger.stored):
            choices.append(Trained(groups=(name,), step=random.randrange(9)))
            choices += [
                Dropped(group=name, reason=reason, again=again, consumed=reason == "stale")
                for reason in ("stale", "zero_spread")
                for again in (False, True)
            ]
        choices += [Stored(groups=(name,)) for name in ledger.open]
        choices += [Recalled(groups=(name,)) for name in ledger.open]
        choices += [Lost(groups=(name,)) for name in ledger.stored]
        record = random.choice(choices)
        ledger.apply(record)
        records.append(record)
    return ledger, records


@given(st.integers(0, 10_000))
def test_the_balance_holds_after_every_record_and_after_reading_back(seed: int) -> None:
    """The journal is the ledger: the same records, decoded, make the same ledger."""
    ledger, records = random_history(Random(seed), 30)
    ledger.validate()
    again = Ledger()
    for record in records:
        again.apply(decode_record(encode_record(record)))
        again.validate()
    assert again == ledger


@given(st.integers(0, 10_000), st.integers(0, 30))
def test_a_snapshot_stands_for_all_records_before_it(seed: int, at: int) -> None:
    """A compacted journal: snapshot, then the rest."""
    ledger, records = random_history(Random(seed), 30)
    half = Ledger()
    for record in records[:at]:
        half.apply(record)
    restored = Ledger()
    restored.apply(decode_record(encode_record(half.snapshot())))
    for record in records[at:]:
        restored.apply(record)
    assert restored == ledger


@given(st.integers(0, 10_000), st.integers(0, 5))
def test_a_resume_keeps_the_balance(seed: int, step: int) -> None:
    ledger, _ = random_history(Random(seed), 30)
    trained = [name for name, (_, at) in ledger.trained.items() if at <= step]
    ledger.resume(step, trained)
    ledger.validate()
    assert all(at <= step for _, at in ledger.trained.values())


def test_what_was_trained_after_the_checkpoint_is_not_trained_any_more() -> None:
    """The weights that it made are gone; the checkpoint knows nothing of it."""
    ledger = Ledger()
    for step in (1, 2, 3):
        record = issue(ledger)
        ledger.apply(record)
        assert isinstance(record, Issued)
        ledger.apply(Trained(groups=(record.group,), step=step))
    ledger.resume(2, ["g0000000", "g0000001"])
    assert list(ledger.trained) == ["g0000000", "g0000001"]
    assert list(ledger.stored) == ["g0000002"]


def test_the_checkpoint_knows_of_training_that_was_never_heard_of_here() -> None:
    """The word of the last step died with the processes that carried it: train nothing twice."""
    ledger = Ledger()
    ledger.apply(issue(ledger))
    records = ledger.resume(1, ["g0000000"])
    assert records == [Resumed(step=1), Trained(groups=("g0000000",), step=1)]
    assert list(ledger.trained) == ["g0000000"]


def test_a_dropped_group_that_is_to_be_retried_goes_out_before_new_prompts() -> None:
    ledger = Ledger()
    for _ in range(2):
        ledger.apply(issue(ledger))
    ledger.apply(Dropped(group="g0000001", reason="stale", again=True))
    assert ledger.next_place() == Place(1, 1)
    ledger.apply(issue(ledger))
    assert "g0000001r1" in ledger.open
    assert ledger.next_place() == Place(2, 0)


def test_recalled_groups_go_out_again_under_their_old_names() -> None:
    """After a restart: what had nothing anywhere counts as never issued, in the old order."""
    ledger = Ledger()
    for _ in range(3):
        ledger.apply(issue(ledger))
    ledger.apply(Recalled(groups=("g0000002", "g0000000")))
    assert ledger.num_issued == 1
    names = []
    for _ in range(3):
        record = issue(ledger)
        assert isinstance(record, Issued)
        ledger.apply(record)
        names.append(record.group)
    assert names == ["g0000000", "g0000002", "g0000003"]


def test_names_of_trained_groups_are_forgotten_only_when_no_resume_can_ask_for_them() -> None:
    ledger = Ledger(checkpoints_named=2)
    for step in (1, 2, 3):
        record = issue(ledger)
        assert isinstance(record, Issued)
        ledger.apply(record)
        ledger.apply(Trained(groups=(record.group,), step=step))
    ledger.apply(Checkpointed(step=1))
    assert len(ledger.trained) == 3
    ledger.apply(Checkpointed(step=2))
    assert list(ledger.trained) == ["g0000001", "g0000002"]
    assert ledger.num_trained == 3
    ledger.validate()


@pytest.mark.parametrize("place", [Place(0, 0), Place(12, 3), Place(12_345_678, 0)])
def test_a_group_s_name_says_where_its_prompt_is(place: Place) -> None:
    assert place_of(group_name(place)) == place


def test_the_checkpoint_may_name_groups_whose_issue_was_never_written_down() -> None:
    """The record died with the process, the messages did not: nothing goes out twice or never."""
    ledger = Ledger()
    ledger.resume(1, ["g0000002", "g0000000"])
    ledger.validate()
    assert list(ledger.trained) == ["g0000002", "g0000000"]
    assert ledger.next_place() == Place(1, 0)
    ledger.apply(issue(ledger))
    assert ledger.next_place() == Place(3, 0)
