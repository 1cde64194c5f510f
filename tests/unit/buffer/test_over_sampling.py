"""Groups sampled beyond need: no batch waits for its slowest group, and what is left has a fate."""

from __future__ import annotations

import pytest
from unit.buffer.kit import Play, settings

from milepost.messages.buffer import GroupAbandoned, GroupOpened, StepTrained
from milepost.messages.rollout import GroupDropped, StoreRecovered
from milepost.messages.supervisor import PeerRestarted
from milepost.messages.trainer import VersionPublished


def synchronous(**fields: object) -> Play:
    play = Play(settings(sync=True, pace=0, over_sampled=1, groups_max=9, **fields))
    play.hear(VersionPublished(version=0), "publisher")
    return play


def one_step(play: Play) -> None:
    """Three groups go out for a batch of two; the third is not complete when it is cut."""
    assert play.granted() == 3
    play.hear(GroupOpened(group_id="slow", prompt_id="p", size=2))
    play.put("g0")
    play.put("g1")
    assert play.batch(play.request(0)).group_ids == ("g0", "g1")


def test_the_slowest_group_of_a_synchronous_step_is_dropped_when_the_batch_is_cut() -> None:
    play = synchronous()
    one_step(play)
    assert play.dropped() == [("slow", "over_sampled", False)]
    # Word of a group that went out before the cut may come after it.
    play.hear(GroupOpened(group_id="late", prompt_id="p", size=2))
    assert play.dropped() == [("late", "over_sampled", False)]
    play.hear(StepTrained(step=0, version=1, group_ids=("g0", "g1")), "trainer-0")
    play.hear(VersionPublished(version=1), "publisher")
    assert play.granted() == 7, "four are spent, three may go out"


def test_a_dropped_group_that_is_announced_again_is_dropped_by_the_same_word() -> None:
    """Said once with its credit spent and once without, another would go out for it, for ever."""
    play = synchronous(retries_unused=True)
    one_step(play)
    first = play.take(GroupDropped)
    play.hear(GroupOpened(group_id="slow", prompt_id="p", size=2))
    assert play.take(GroupDropped) == first
    play.hear(GroupAbandoned(group_id="slow", reason="episode_failed"))
    assert play.take(GroupDropped) == first
    assert first[0].consumed
    assert first[0].retry


def dropped_and_unwritten() -> Play:
    """The slow group is dropped, and the journal does not know it yet."""
    play = synchronous(journal=True)
    play.writes = False
    play.hear(GroupOpened(group_id="slow", prompt_id="p", size=2))
    play.put("g0")
    play.put("g1")
    for work in list(play.works):
        play.finish(work)
    play.request(0)
    return play


def test_the_fate_of_a_group_that_is_announced_again_waits_for_the_journal_too() -> None:
    """Killed in between, the buffer would know nothing of a group that is over for its sender."""
    play = dropped_and_unwritten()
    for again in (
        GroupOpened(group_id="slow", prompt_id="p", size=2),
        GroupAbandoned(group_id="slow", reason="episode_failed"),
    ):
        play.hear(again)
        assert play.take(GroupDropped) == []
    play.write()
    assert play.dropped() == [("slow", "over_sampled", False)], "said once"


@pytest.mark.parametrize("journal", ["knows the drop", "is behind"])
def test_a_spent_credit_is_told_by_the_drop_or_by_the_count_and_never_by_both(
    journal: str,
) -> None:
    """Counted twice, the last batch would wait for a group that has no credit to go out with."""
    play = dropped_and_unwritten()
    is_behind = journal == "is behind"
    if not is_behind:
        play.write()
        assert [word.consumed for word in play.take(GroupDropped)] == [True]
    play.hear(PeerRestarted(actor="rollout", incarnation=1), "supervisor")
    assert play.take(StoreRecovered)[-1].groups_spent == 1
    if is_behind:
        play.write()
        assert [word.consumed for word in play.take(GroupDropped)] == [False]
    play.hear(GroupOpened(group_id="slow", prompt_id="p", size=2))
    assert [word.consumed for word in play.take(GroupDropped)] == [False]


def test_what_missed_its_batch_may_be_issued_again() -> None:
    """Else the prompts with the longest answers would never be trained on."""
    play = synchronous(retries_unused=True)
    one_step(play)
    assert play.dropped() == [("slow", "over_sampled", True)]


def test_partial_rollout_keeps_it_for_the_next_batch_with_tokens_of_both_versions() -> None:
    play = synchronous(partial=True)
    one_step(play)
    assert play.dropped() == []
    play.hear(StepTrained(step=0, version=1, group_ids=("g0", "g1")), "trainer-0")
    play.hear(VersionPublished(version=1), "publisher")
    assert play.granted() == 5, "one of three is out still"
    play.put("g2", 1)
    play.put("slow", 0, 1)
    batch = play.batch(play.request(1))
    assert batch.group_ids == ("slow", "g2"), "the oldest version first"
    assert batch.metrics["rollout/staleness/delta_gen_mean"] == 0.5


def test_without_turns_it_is_the_last_batch_that_does_not_wait() -> None:
    """The end of an asynchronous run is a synchronous step like any other."""
    play = Play(settings(steps=1, over_sampled=1, groups_max=9))
    one_step(play)
    assert play.dropped() == [("slow", "over_sampled", False)]
    assert play.granted() == -1
