"""Accounts of sampled tokens: each token in one, over deaths and resumes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from unit.buffer.kit import Play, group, settings

from milepost.actors.buffer.journal import GroupJournal
from milepost.actors.buffer.marks import (
    LOST_AT_RESUME,
    Accounted,
    Covered,
    Fates,
    Gone,
    Handed,
    Mark,
    Spent,
    WentOn,
    decode_mark,
    encode_mark,
)
from milepost.actors.buffer.work import WriteMarks
from milepost.messages.buffer import GroupAbandoned, StepTrained, TokensAccounted


def replayed(*marks: Mark) -> Fates:
    """What the journal of these marks says."""
    fates = Fates()
    fates.apply_all(decode_mark(encode_mark(mark)) for mark in marks)
    return fates


def test_what_the_accounts_say_outlives_the_process() -> None:
    """A killed buffer must not begin its books anew: the statement is about the run."""
    play = Play(settings(journal=True), writes=False)
    marks: list[Mark] = []

    def write() -> None:
        for work in list(play.works):
            if isinstance(work, WriteMarks):
                marks.extend(work.marks)
            play.finish(work)

    for name in ("g0", "g1", "g2"):
        play.put(name)
        write()
    play.request(0)
    write()
    play.hear(StepTrained(step=0, version=1, group_ids=("g0", "g1")), "trainer-0")
    play.hear(GroupAbandoned(group_id="g2", reason="lost"))
    play.hear(TokensAccounted(tokens={"stopped": 7}), "session-0")
    write()
    assert play.core.fates.accounts == {"trained": 4, "abandoned": 2, "stopped": 7}
    assert replayed(*marks).accounts == play.core.fates.accounts


def test_a_fate_and_its_tokens_are_written_in_one_stroke() -> None:
    """Between two writes a death would leave a group that is gone, and tokens that are nowhere."""
    play = Play(settings(journal=True))
    play.put("g0")
    play.writes = False
    play.hear(GroupAbandoned(group_id="g0", reason="lost"))
    (work,) = play.works
    assert isinstance(work, WriteMarks)
    assert [type(mark).__name__ for mark in work.marks] == ["Accounted", "Gone"]


def test_a_batch_said_to_be_trained_twice_is_counted_once() -> None:
    play = Play(settings(journal=True))
    for name in ("g0", "g1"):
        play.put(name)
    play.request(0)
    for _ in range(2):
        play.hear(StepTrained(step=0, version=1, group_ids=("g0", "g1")), "trainer-0")
    assert play.core.fates.accounts == {"trained": 4}


def test_what_was_trained_after_the_checkpoint_of_a_resume_is_not_trained_any_more() -> None:
    """Its groups wait in the journal once more; counted twice they would hide a loss."""
    spent = [Spent(step=at, version=at + 1, groups=(f"g{at}",), tokens=10) for at in range(3)]
    fates = replayed(*spent, WentOn(version=1))
    assert fates.accounts == {"trained": 10}


def test_a_batch_whose_word_died_with_the_journal_is_trained_when_the_checkpoint_says_so() -> None:
    """The checkpoint of version 1 is there, so the batch before it was trained."""
    handed = [Handed(step=at, version=at, groups=(f"g{at}",), tokens=5) for at in range(2)]
    assert replayed(*handed, WentOn(version=1)).accounts == {"trained": 5}


def test_accounts_stay_when_names_are_forgotten_and_the_journal_is_compacted() -> None:
    spent = [Spent(step=at, version=at + 1, groups=(f"g{at}",), tokens=10) for at in range(3)]
    fates = replayed(
        *spent, Accounted(tokens={"stopped": 3}), Covered(version=1), Covered(version=2)
    )
    fates.forget()
    assert fates.accounts == {"trained": 30, "stopped": 3}
    assert fates.trained_tokens == {2: 10, 3: 10}
    again = replayed(fates.whole(), WentOn(version=2))
    assert again.accounts == {"trained": 20, "stopped": 3}


def test_groups_that_a_resume_cannot_use_end_in_an_account_of_their_own(tmp_path: Path) -> None:
    """They were sampled under a version that the resumed run never makes."""
    journal = GroupJournal(tmp_path, 1 << 20, 2)
    journal.keep(group("g0", 1))
    journal.close()
    journal = GroupJournal(tmp_path, 1 << 20, 2)
    journal.recover(10)
    journal.keep(group("g1", 5))
    journal.close()
    journal = GroupJournal(tmp_path, 1 << 20, 2)
    journal.go_on_from(1, 10)
    assert [each.group_id for each in journal.recover(10)] == ["g0"]
    assert journal.fates.accounts == {LOST_AT_RESUME: 2}
    journal.close()


def test_a_run_that_begins_again_has_no_fates_and_all_its_tokens_are_lost(tmp_path: Path) -> None:
    """The ledger begins anew too, under the old names: one that is gone would never be trained."""
    journal = GroupJournal(tmp_path, 8, 1)  # a file for each group
    journal.recover(10)
    for at in range(4):
        journal.keep(group(f"g{at}", 0))
    journal.cover((Spent(step=0, version=1, groups=("g0",), tokens=2), Covered(version=1)))
    assert journal.fates.num_spent_before == 1, "its name is forgotten"
    journal.write((Spent(step=1, version=2, groups=("g1",), tokens=2),))
    journal.write((Accounted(tokens={"abandoned": 2}), Gone(group="g2", reason="lost")))
    journal.write((Handed(step=2, version=2, groups=("g3",), tokens=2),))
    journal.go_on_from(0, 10)
    journal.close()
    again = GroupJournal(tmp_path, 8, 1)
    assert again.recover(10) == []
    lost = {"abandoned": 2, LOST_AT_RESUME: 6}
    assert again.fates == Fates(checkpoints_named=1, tokens=Counter(lost))
    assert again.fates.accounts == lost
    again.close()
