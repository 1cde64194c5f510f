"""Credits and ages: how many groups may be under way, and which of them are too old to train."""

from __future__ import annotations

import pytest
from sim.topologies import topology
from unit.buffer.kit import Play, row, settings

from milepost.actors.buffer.settings import BufferSettings
from milepost.configs.actors import BufferConfig, RestartConfig
from milepost.messages.buffer import StepTrained
from milepost.messages.trainer import VersionPublished


def publish(play: Play, version: int) -> None:
    play.hear(VersionPublished(version=version), "publisher")


def train(play: Play, step: int) -> None:
    batch = play.batch(play.request(step))
    trained = StepTrained(step=step, version=step + 1, group_ids=batch.group_ids)
    play.hear(trained, "trainer-0")


# ---- room --------------------------------------------------------------------------------


def test_credits_never_exceed_the_places_of_the_buffer() -> None:
    assert Play(settings(groups_max=3)).granted() == 3


def test_near_the_end_credits_are_what_the_remaining_steps_need() -> None:
    """What nobody will train is not generated."""
    play = Play(settings(steps=1, groups_max=9))
    assert play.granted() == 2
    play.put("g0")
    play.put("g1")
    play.request(0)
    assert play.granted() == -1


def test_the_synchronous_mode_issues_one_batch_for_each_published_version() -> None:
    play = Play(settings(pace=0, groups_max=9))
    assert play.granted() == 0
    publish(play, 0)
    assert play.granted() == 2
    play.put("g0")
    play.put("g1")
    train(play, 0)
    assert play.granted() == -1
    publish(play, 1)
    assert play.granted() == 4


@pytest.mark.parametrize(("pace", "every", "batches"), [(0, 1, 1), (2, 1, 3), (0, 4, 4), (3, 4, 4)])
def test_pacing_counts_the_batches_that_are_still_in_time(
    pace: int, every: int, batches: int
) -> None:
    """Version 0 is published; the next ones are multiples of `every`."""
    play = Play(settings(pace=pace, publish_every=every, groups_max=99, steps=99))
    publish(play, 0)
    assert play.granted() == 2 * batches


def test_a_resume_at_a_high_version_changes_nothing_about_the_bound() -> None:
    """Room counted as (bound + recovered version + 1) batches let staleness grow without end."""
    play = Play(settings(pace=1, groups_max=99, steps=99))
    play.core.batches.next_version = 40
    publish(play, 40)
    assert play.granted() == 2 * 2


def test_a_stalled_trainer_stops_the_grants() -> None:
    play = Play(settings(pace=1, groups_max=99))
    publish(play, 0)
    assert play.granted() == 4
    for at in range(4):
        play.put(f"g{at}")
        publish(play, 0)
    assert play.granted() == -1


# ---- ages --------------------------------------------------------------------------------


def test_a_group_beyond_the_limit_is_dropped_as_soon_as_a_version_makes_it_so() -> None:
    play = Play(settings(staleness_max=1, late="drop"))
    play.put("g0", 0)
    publish(play, 1)
    assert play.dropped() == []
    publish(play, 2)
    assert play.dropped() == [("g0", "stale", False)]
    assert play.core.fates.accounts == {"dropped_stale": 2}


def test_a_group_that_comes_too_late_is_never_handed_out() -> None:
    """It grew old on its way; judging it when it is stored would let it in."""
    play = Play(settings(staleness_max=1, late="retry", groups_per_step=1))
    publish(play, 5)
    number = play.request(0)
    play.put("g0", 3, 5)
    assert number not in play.replies
    assert play.dropped() == [("g0", "stale", True)]
    play.put("g1", 4, 5)
    assert play.batch(number).group_ids == ("g1",)
    metrics = play.batch(number).metrics
    assert metrics["rollout/fully_async/stale_groups_filtered"] == 1.0
    assert metrics["rollout/staleness/s_old_max"] == 1.0


def test_corrected_groups_are_trained_however_old_they_are() -> None:
    play = Play(settings(staleness_max=1, late="correct", groups_per_step=1))
    publish(play, 9)
    play.put("g0", 0)
    assert play.batch(play.request(0)).metrics["rollout/staleness/s_old_max"] == 9.0


@pytest.mark.parametrize("late", ["drop", "correct"])
def test_a_group_whose_age_nobody_knows_is_refused_when_there_is_a_limit(late: str) -> None:
    """Unversioned tokens count as fresh elsewhere, for ever."""
    play = Play(settings(staleness_max=9, late=late, groups_per_step=1))
    publish(play, 0)
    play.put("g0", 0)
    play.hear_group_without_versions("g1")
    play.request(0)
    play.request(1)
    assert play.dropped() == [("g1", "unknown_age", False)]


def test_paced_batches_take_the_oldest_groups_first() -> None:
    """They are due first; the younger ones can still be consumed in time later."""
    play = Play(settings(pace=2, groups_max=9, groups_per_step=1))
    publish(play, 2)
    play.put("young", 2)
    play.put("old", 1, 2)
    assert play.batch(play.request(0)).group_ids == ("old",)


def test_ages_of_one_batch_are_judged_when_it_is_cut() -> None:
    play = Play(settings(staleness_max=0, late="drop", groups_per_step=2))
    publish(play, 0)
    play.put("g0", 0)
    play.request(0)
    publish(play, 1)
    play.put("g1", 1)
    play.put("g2", 1)
    (cut,) = play.core.batches.untrained()
    assert cut.group_ids == ("g1", "g2")


# ---- settings ----------------------------------------------------------------------------


def test_what_cannot_work_is_refused_before_the_run() -> None:
    """A batch larger than the buffer waits for ever; pacing needs something to pace by."""
    with pytest.raises(ValueError, match="groups_max is 1, less than one batch of"):
        BufferSettings.of(topology(prompts=2, buffer={"groups_max": 1}))
    with pytest.raises(ValueError, match="max_weight_staleness is not set"):
        BufferSettings.of(topology(buffer={"staleness_policy": "pace"}))
    permanent = BufferConfig(journal=False, restart=RestartConfig(policy="permanent"))
    fields = {"journal": False, "restart": permanent.restart}
    with pytest.raises(ValueError, match="a restarted buffer could not tell what is being"):
        BufferSettings.of(topology(buffer=fields))


def test_rows_count_their_sampled_tokens() -> None:
    assert row("g.0", 1, 2, tokens=3).num_sampled_tokens == 6
