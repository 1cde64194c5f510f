"""What a failed, late, repeated or lost episode becomes: never a reward, never silence."""

from __future__ import annotations

import math

import pytest
from unit.rollout.kit import Play, settings

from milepost.actors.effects import Answered, Unanswered
from milepost.actors.rollout.verdicts import GIVEN_UP_MAX, LOSSES_MAX
from milepost.messages.agent import CancelEpisode
from milepost.messages.buffer import GroupAbandoned, GroupResized
from milepost.messages.rollout import (
    AgentLeft,
    AgentReady,
    EpisodeEnded,
    EpisodesAlive,
    GroupDropped,
    TrajectoryLost,
)
from milepost.messages.session import FinishTrajectory, SessionsRefused
from milepost.messages.shared import Status


def roomy(**fields: object) -> Play:
    return Play(settings(agents={"agent-0": 9}, **fields)).begin(granted=2)


def test_a_failed_episode_is_sampled_again_and_only_that_one() -> None:
    """Dropping the group for one failure of eight regenerates a third of all rollouts at 5 %."""
    play = roomy()
    play.running()
    play.end("g0000000.0", good=False)
    assert play.running() == [("g0000000.0", 1)]


def test_when_retries_are_used_up_the_group_is_given_up() -> None:
    play = roomy(retries_max=1)
    play.end("g0000000.0", good=False)
    play.end("g0000000.0", 1, good=False)
    assert [one.reason for one in play.take(GroupAbandoned)] == ["episode_failed"]
    assert [one.trajectory_id for one in play.take(CancelEpisode)] == ["g0000000.1"]
    assert list(play.core.book.ledger.open) == ["g0000000"]
    dropped = GroupDropped(group_id="g0000000", reason="episode_failed", retry=False)
    play.hear("buffer", dropped)
    assert play.core.book.ledger.dropped == {"episode_failed": 1}


def test_an_order_to_drop_may_come_too_late() -> None:
    """The buffer had the whole group already, from an attempt that was believed lost."""
    play = roomy(failed="drop_group")
    play.end("g0000000.0", good=False)
    assert play.take(GroupAbandoned)
    play.store("g0000000")
    assert list(play.core.book.ledger.stored) == ["g0000000"]


def test_a_smaller_group_goes_on_without_the_failed_member() -> None:
    play = Play(settings(agents={"agent-0": 9}, failed="smaller_group", group_size=3)).begin()
    play.end("g0000000.1", good=False)
    (resized,) = play.take(GroupResized)
    assert (resized.group_id, resized.size) == ("g0000000", 2)
    play.end("g0000000.2", good=False)
    assert [one.group_id for one in play.take(GroupAbandoned)] == ["g0000000"]


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e200, None])
def test_a_reward_that_is_no_number_is_a_failure(reward: float | None) -> None:
    """It would pass through the mean of its group into every sibling's advantage."""
    play = roomy()
    ended = EpisodeEnded(
        trajectory_id="g0000000.0", attempt=0, status=Status.COMPLETED, reward=reward
    )
    play.hear("agent-0", ended)
    assert play.core.flight.counters.episodes_failed == 1


def test_a_second_verdict_and_one_of_an_old_attempt_change_nothing() -> None:
    """The time-out re-issues, then the first attempt finishes: 33 of 32."""
    play = roomy()
    play.end("g0000000.0", good=False)
    play.end("g0000000.0", 0)
    play.end("g0000000.0", 1)
    play.end("g0000000.0", 1)
    assert play.core.flight.counters.late_duplicates == 2
    assert play.core.flight.counters.tokens_delivered == 9


def test_a_verdict_on_something_never_given_out_is_counted_not_believed() -> None:
    play = roomy()
    play.end("no-such-thing")
    play.end("g0000000.77")
    assert play.core.flight.counters.late_duplicates == 2


def test_an_agent_that_is_silent_loses_its_episodes_once_the_lease_is_over() -> None:
    """Its word that an episode is alive renews the lease; long episodes are not cut off."""
    play = roomy()
    play.running()
    play.now_s = 50.0
    play.hear("agent-0", EpisodesAlive(trajectory_ids=("g0000000.0",)))
    play.now_s = 109.0
    play.hear("agent-0", EpisodesAlive(trajectory_ids=("g0000000.0",)))
    play.wakes["leases"] = 110.0
    play.wake("leases")
    assert [one.trajectory_id for one in play.take(CancelEpisode)] == ["g0000000.1"]
    play.wake("again/g0000000.1")
    assert play.running() == [("g0000000.1", 1)]


def test_a_trajectory_that_is_lost_again_and_again_is_given_up() -> None:
    play = roomy()
    for attempt in range(LOSSES_MAX + 1):
        lost = TrajectoryLost(trajectory_id="g0000000.0", attempt=attempt, cause="engine gone")
        play.hear("session-0", lost)
        play.wakes.pop("leases", None)
        play.wake_all()
    assert [one.reason for one in play.take(GroupAbandoned)] == ["lost"]


def test_a_run_whose_every_episode_fails_stops_with_the_last_cause() -> None:
    """A broken environment is a known hang: groups dropped for ever, a trainer that waits."""
    play = Play(settings(agents={"agent-0": 9}, failed="drop_group")).begin(granted=100)
    for number in range(GIVEN_UP_MAX):
        play.end(f"g{number:07d}.0", good=False)
        play.end(f"g{number:07d}.1", good=False)
        name = f"g{number:07d}"
        play.hear("buffer", GroupDropped(group_id=name, reason="episode_failed", retry=False))
    assert "g0000007.0: it broke" in play.failed


def test_one_delivered_trajectory_is_enough_to_go_on() -> None:
    play = Play(settings(agents={"agent-0": 9}, failed="drop_group")).begin(granted=100)
    for number in range(2 * GIVEN_UP_MAX):
        play.end(f"g{number:07d}.0")
        play.end(f"g{number:07d}.1", good=False)
        name = f"g{number:07d}"
        play.hear("buffer", GroupDropped(group_id=name, reason="episode_failed", retry=False))
    assert play.failed == ""


@pytest.mark.parametrize("is_link", [False, True])
def test_a_session_without_room_is_asked_again_and_nothing_counts_as_lost(*, is_link: bool) -> None:
    """Whether the session says so itself, or the link to it is full of what it has not taken."""
    play = Play(settings(agents={"agent-0": 9}))
    play.answers = False
    play.begin(granted=2)
    (key,) = play.asked
    if is_link:
        play.feed(Unanswered(key, "session-0", "not sent", no_room=True))
    else:
        play.feed(Answered(key, "session-0", SessionsRefused(reason="sessions_max is 1")))
    assert play.core.flight.counters.episodes_lost == 0
    play.answers = True
    play.wake_all()
    assert sorted(play.running()) == [("g0000000.0", 1), ("g0000000.1", 1)]


def test_a_session_that_lost_the_row_says_so_in_its_answer() -> None:
    play = roomy()
    play.running()
    play.answers = False
    play.end("g0000000.0")
    ((key, ask),) = play.asked.items()
    assert isinstance(ask.message, FinishTrajectory)
    lost = TrajectoryLost(trajectory_id="g0000000.0", attempt=0, cause="no such session")
    play.answers = True
    play.asked.clear()
    play.feed(Answered(key, "session-0", lost))
    play.wake("again/g0000000.0")
    assert play.running() == [("g0000000.0", 1)]


def test_a_session_hears_which_replies_its_verdict_has_seen() -> None:
    """It holds others, too, where an agent waited no more for one and went on."""
    play = roomy()
    play.running()
    play.answers = False
    ended = EpisodeEnded(
        trajectory_id="g0000000.0",
        attempt=0,
        status=Status.COMPLETED,
        reward=1.0,
        generation=3,
        received=(1, 3),
    )
    play.hear("agent-0", ended)
    ((_, ask),) = play.asked.items()
    assert isinstance(ask.message, FinishTrajectory)
    assert (ask.message.generation, ask.message.received) == (3, (1, 3))


def test_agents_come_and_go() -> None:
    """Work goes to the host with the largest free share; a leaving host's episodes go out again."""
    play = Play(settings(agents={"agent-0": 1}, in_flight_max=8)).begin(granted=6)
    assert len(play.running()) == 1
    play.hear("agent-1", AgentReady(agent="agent-1", episodes_max=4))
    assert len(play.running()) == 4
    play.hear("agent-1", AgentLeft(agent="agent-1", reason="its node is taken away"))
    assert play.core.flight.counters.episodes_lost == 4
