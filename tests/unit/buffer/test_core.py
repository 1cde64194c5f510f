"""The buffer: assembling in any order, storing before telling, one batch for each group."""

from __future__ import annotations

from itertools import permutations

import pytest
from unit.buffer.kit import Play, group, row, settings

from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.effects import Taken, Unanswered
from milepost.messages.buffer import (
    Batch,
    BatchExhausted,
    CheckpointSaved,
    GroupAbandoned,
    GroupOpened,
    GroupResized,
    IssueEnded,
    StepTrained,
    TrajectoriesFinished,
)
from milepost.messages.rollout import (
    GroupsStored,
    GroupStored,
    GroupsTrained,
    StoreRecovered,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

OPENED = GroupOpened(group_id="g0000000", prompt_id="p", size=2)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_a_group_is_complete_however_its_parts_come(order: tuple[int, ...]) -> None:
    """The opening comes on another link than the trajectories, and may be the last to arrive."""
    play = Play(settings())
    parts = [
        lambda: play.hear(OPENED),
        lambda: play.deliver(row("g0000000.0", 0, reward=1.0)),
        lambda: play.deliver(row("g0000000.1", 0, reward=0.0)),
    ]
    for at in order:
        assert play.stored_names() == []
        parts[at]()
    assert play.stored_names() == ["g0000000"]


def test_members_know_the_rewards_of_all_in_the_order_of_their_numbers() -> None:
    play = Play(settings(groups_per_step=1, group_size=11))
    play.hear(GroupOpened(group_id="g0", prompt_id="p", size=11))
    for at in reversed(range(11)):
        play.deliver(row(f"g0.{at}", 0, reward=float(at)))
    batch = play.batch(play.request(0))
    rewards = {one.trajectory_id: one.group_rewards for one in batch.trajectories}
    assert set(rewards.values()) == {tuple(map(float, range(11)))}
    assert {one.group_size for one in batch.trajectories} == {11}


def test_a_member_that_comes_twice_counts_once() -> None:
    """A verdict whose answer was lost is delivered again; the first row stays."""
    play = Play(settings())
    play.hear(OPENED)
    play.deliver(row("g0000000.0", 0, reward=1.0), row("g0000000.0", 0, reward=0.0))
    assert play.stored_names() == []
    play.deliver(row("g0000000.1", 0), row("g0000000.1", 0))
    assert play.stored_names() == ["g0000000"]
    assert play.core.fates.accounts["late_duplicate"] == 2


def test_a_smaller_group_may_be_complete_at_once() -> None:
    play = Play(settings(group_size=3))
    play.hear(GroupOpened(group_id="g0", prompt_id="p", size=3))
    play.deliver(row("g0.0", 0), row("g0.2", 0))
    play.hear(GroupResized(group_id="g0", size=2, reason="it broke"))
    assert play.stored_names() == ["g0"]


def test_a_filtered_group_is_dropped_with_its_reason_and_its_tokens_are_accounted() -> None:
    play = Play(settings(filters=(lambda seen: "too_easy" if min(seen.rewards) > 0 else "",)))
    play.put("g0", rewards=(1.0, 1.0))
    assert play.dropped() == [("g0", "too_easy", False)]
    assert play.core.fates.accounts == {"filtered_too_easy": 2}
    play.put("g1")
    play.put("g2")
    metrics = play.batch(play.request(0)).metrics
    assert metrics["rollout/dynamic_filter/drop_too_easy"] == 1.0
    assert metrics["rollout/waste/filtered_too_easy_tokens"] == 2.0


def test_an_abandoned_group_is_dropped_and_its_late_members_are_refused() -> None:
    play = Play(settings())
    play.hear(OPENED)
    play.deliver(row("g0000000.0", 0))
    play.hear(GroupAbandoned(group_id="g0000000", reason="episode_failed"))
    assert play.dropped() == [("g0000000", "episode_failed", False)]
    play.deliver(row("g0000000.1", 0))
    assert play.stored_names() == []
    assert play.core.assembling.groups == {}


def test_a_group_in_a_batch_cannot_be_abandoned_any_more() -> None:
    play = Play(settings(groups_per_step=1))
    play.put("g0")
    play.batch(play.request(0))
    play.hear(GroupAbandoned(group_id="g0", reason="episode_failed"))
    assert play.dropped() == []


# ---- write ahead -------------------------------------------------------------------------


def test_nothing_is_said_of_a_group_before_the_journal_has_it() -> None:
    """Told first and written later, a kill in between loses a group that counts as safe."""
    play = Play(settings(journal=True), writes=False)
    play.put("g0")
    assert [type(work) for work in play.works] == [KeepGroup]
    assert play.take(GroupStored) == []
    play.write()
    assert play.stored_names() == ["g0"]


def test_no_rank_has_a_batch_before_the_journal_knows_that_it_was_handed_out() -> None:
    play = Play(settings(journal=True, groups_per_step=1))
    play.put("g0")
    play.writes = False
    number = play.request(0)
    assert [type(work) for work in play.works] == [WriteMarks]
    assert number not in play.replies
    play.write()
    assert isinstance(play.batch(number), Batch)


def test_a_journal_that_cannot_be_written_stops_the_run() -> None:
    play = Play(settings(journal=True), writes=False)
    play.put("g0")
    play.write("OSError: No space left on device")
    assert "cannot be written: keep/g0: OSError: No space left" in play.failed


# ---- batches -----------------------------------------------------------------------------


def test_a_batch_waits_for_its_groups_and_comes_first_come_first_served() -> None:
    play = Play(settings())
    number = play.request(0)
    play.put("g1")
    assert number not in play.replies
    play.put("g0")
    assert play.batch(number).group_ids == ("g1", "g0")


def test_asking_again_gets_the_same_answer() -> None:
    """A rank that restarted, or whose answer was lost, must not train on other data."""
    play = Play(settings())
    for name in ("g0", "g1", "g2", "g3"):
        play.put(name)
    first, again = play.batch(play.request(0)), play.batch(play.request(0))
    assert first.trajectories == again.trajectories
    assert play.batch(play.request(1)).group_ids == ("g2", "g3")


def test_ranks_get_their_parts_of_one_batch_with_the_same_sums() -> None:
    play = Play(settings(num_minibatches=2))
    numbers = [play.request(0, rank, 2) for rank in (1, 0)]
    play.put("g0")
    play.put("g1")
    parts = [play.batch(number) for number in numbers]
    names = sorted(one.trajectory_id for part in parts for one in part.trajectories)
    assert names == ["g0.0", "g0.1", "g1.0", "g1.1"]
    sums = {(p.num_trajectories, p.num_loss_tokens, p.minibatch_loss_tokens) for p in parts}
    assert sums == {(4, 4, (2, 2))}
    assert [sorted(part.minibatch_of) for part in parts] == [[0, 1], [0, 1]]


def test_what_was_trained_is_told_and_its_room_is_free() -> None:
    play = Play(settings(groups_max=2))
    play.hear(VersionPublished(version=0), "publisher")
    play.put("g0")
    play.put("g1")
    assert play.granted() == 2
    play.batch(play.request(0))
    assert play.granted() == 4
    play.hear(StepTrained(step=0, version=1, group_ids=("g0", "g1")), "trainer-0")
    (trained,) = play.take(GroupsTrained)
    assert (trained.group_ids, trained.version) == (("g0", "g1"), 1)
    assert play.granted() == -1


def test_word_of_a_step_stands_for_the_steps_before_it() -> None:
    """The word of step 0 died with a buffer that had taken it; step 1 could not come otherwise."""
    play = Play(settings(groups_per_step=1))
    for step in range(2):
        play.put(f"g{step}")
        play.request(step)
    play.hear(StepTrained(step=1, version=2, group_ids=("g1",)), "trainer-0")
    trained = [one.group_ids for one in play.take(GroupsTrained)]
    assert trained == [("g0",), ("g1",)]


def test_when_nothing_more_is_issued_a_batch_that_cannot_be_filled_is_said_to_be_none() -> None:
    play = Play(settings())
    number = play.request(0)
    play.put("g0")
    play.hear(IssueEnded(reason="the rollout actor drains", draining=True))
    ended = BatchExhausted(reason="the rollout actor drains", draining=True)
    assert play.batch(number) == ended


def test_data_that_ended_and_a_run_that_drains_are_told_apart() -> None:
    """One means that the work is done, the other that it goes on some day."""
    play = Play(settings())
    number = play.request(0)
    play.hear(IssueEnded(reason="the data ended"))
    play.ask(Drain(deadline_s=9.0), "supervisor")
    assert play.batch(number) == BatchExhausted(reason="the data ended")
    assert play.batch(play.request(0)) == BatchExhausted(reason="the data ended")


# ---- restarts, words that were missed, drain ---------------------------------------------


def test_what_is_held_is_said_at_the_start_and_to_a_rollout_actor_that_restarts() -> None:
    play = Play(settings(), stored=(group("g0", 0), group("g1", 0)))
    (first,) = play.take(StoreRecovered)
    assert first.stored == ("g0", "g1")
    play.batch(play.request(0))
    play.hear(PeerRestarted(actor="rollout", incarnation=1), "supervisor")
    (again,) = play.take(StoreRecovered)
    assert again.stored == ("g0", "g1")


def test_many_missed_words_are_made_up_for_by_one_introduction() -> None:
    play = Play(settings())
    play.take(StoreRecovered)
    play.feed(Taken("introduction/1"))
    for _ in range(5):
        play.feed(Unanswered("", "rollout", "not taken"))
    assert len(play.take(StoreRecovered)) == 1
    play.feed(Taken("introduction/2"))
    assert len(play.take(StoreRecovered)) == 1
    play.feed(Taken("introduction/3"))
    assert play.take(StoreRecovered) == []


def test_names_of_trained_groups_stay_until_the_rollout_actor_has_taken_word_of_them() -> None:
    """Otherwise it would believe them lost, and send their prompts out a second time."""
    play = Play(settings(groups_per_step=1))
    play.feed(Taken("introduction/1"))
    play.put("g0")
    play.request(0)
    play.hear(StepTrained(step=0, version=1, group_ids=("g0",)), "trainer-0")
    for version in (1, 2, 3):
        play.hear(CheckpointSaved(step=version, folder=""), "trainer-0")
    assert "g0" in play.core.fates.trained
    play.feed(Taken("trained/2"))
    play.hear(CheckpointSaved(step=4, folder=""), "trainer-0")
    assert "g0" not in play.core.fates.trained
    assert play.core.fates.num_spent == 1


def test_an_opening_of_a_group_that_has_its_fate_gets_the_fate_again() -> None:
    """A rollout actor whose last records were lost opens what was trained or dropped already."""
    play = Play(settings(groups_per_step=1))
    play.put("g0")
    play.request(0)
    play.hear(StepTrained(step=0, version=1, group_ids=("g0",)), "trainer-0")
    play.hear(GroupAbandoned(group_id="g1", reason="lost"))
    play.take(GroupsTrained), play.dropped()
    play.hear(GroupOpened(group_id="g0", prompt_id="p", size=2))
    play.hear(GroupOpened(group_id="g1", prompt_id="p", size=2))
    assert [one.group_ids for one in play.take(GroupsTrained)] == [("g0",)]
    assert play.dropped() == [("g1", "lost", False)]


def test_a_drain_waits_for_the_journal_and_ends_waiting_requests() -> None:
    play = Play(settings(journal=True), writes=False)
    waiting = play.request(0)
    play.put("g0")
    number = play.ask(Drain(deadline_s=9.0), "supervisor")
    assert number not in play.replies
    assert play.batch(waiting) == BatchExhausted(reason="the buffer drains", draining=True)
    play.write()
    assert play.batch(number) == Drained(actor="buffer")


# ---- imported conversations --------------------------------------------------------------


def test_conversations_are_groups_of_one_that_nobody_announces() -> None:
    play = Play(settings(imports=True, group_size=1))
    rows = tuple(row(f"g{at}.0") for at in range(3))
    play.hear(TrajectoriesFinished(trajectories=rows), "session-0")
    assert [one.group_ids for one in play.take(GroupsStored)] == [("g0", "g1", "g2")]
    batch = play.batch(play.request(0))
    assert len(batch.trajectories) == 2
    assert not any("version" in name or "staleness" in name for name in batch.metrics)
