"""The evaluator: held-out scores, each of exactly one version, and honest about what is missing."""

from __future__ import annotations

from typing import Any

import pytest
from unit.evaluator.kit import Play, settings

from milepost.actors.effects import Unanswered
from milepost.messages.evaluator import EvaluateNow
from milepost.messages.publisher import ReleaseVersion
from milepost.messages.rollout import AgentReady, EvaluationFinished
from milepost.messages.shared import Status
from milepost.messages.supervisor import (
    Drain,
    Drained,
    EventReported,
    PeerRestarted,
    StepRecorded,
    WorkFinished,
)


def evaluations(play: Play) -> list[dict[str, Any]]:
    return [one.values for one in play.take(EventReported) if one.kind == "evaluation"]


def test_the_untrained_policy_is_scored_before_anything_is_trained() -> None:
    play = Play(settings())
    play.publish(0)
    assert play.take(EvaluationFinished) == []
    play.end_all(reward=0.0)
    (evaluation,) = evaluations(play)
    assert evaluation["version"] == 0
    assert evaluation["sampled"]["num_episodes"] == 3
    assert evaluation["greedy"]["success"] == 0.0
    assert play.take(EvaluationFinished) == [EvaluationFinished(version=0)]
    assert play.take(ReleaseVersion)


def test_a_resumed_run_was_scored_before_its_first_step_already() -> None:
    play = Play(settings(resumed_version=7))
    play.publish(7)
    assert play.running == {}
    assert play.take(EvaluationFinished) == [EvaluationFinished(version=7)]


def test_the_last_version_is_scored_and_then_the_work_is_done() -> None:
    play = Play(settings(at_start=False))
    play.publish(0)
    play.publish(1)
    assert play.running == {}
    play.publish(2, final=True)
    assert play.take(WorkFinished) == []
    play.end_all()
    (finished,) = play.take(WorkFinished)
    assert [one["version"] for one in finished.summary["evaluations"]] == [2]


@pytest.mark.parametrize(("every", "scored"), [(0, [0, 5]), (2, [0, 2, 4, 5])])
def test_scores_in_between_come_every_so_many_versions(every: int, scored: list[int]) -> None:
    play = Play(settings(every_versions=every))
    for version in range(6):
        play.publish(version, final=version == 5)
        play.end_all()
    assert [one["version"] for one in evaluations(play)] == scored
    assert [one.step for one in play.take(StepRecorded)] == scored


def test_one_may_ask_for_a_score_out_of_turn() -> None:
    play = Play(settings(at_start=False))
    play.publish(3)
    play.hear(EvaluateNow(reason="curious"), "monitor")
    play.end_all()
    assert [one["version"] for one in evaluations(play)] == [3]


def test_questions_and_seeds_are_the_same_for_every_version() -> None:
    """Before and after differ by the policy, and by nothing else."""
    asked = []
    for version in (0, 9):
        play = Play(settings(in_flight_max=9, agents={"agent-0": 9}))
        play.publish(version, final=True)
        asked.append([(one.prompt.prompt_id, one.seed) for one in play.running.values()])
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 6


def test_no_more_episodes_are_out_than_there_is_room_for() -> None:
    play = Play(settings(agents={"agent-0": 2}))
    play.publish(0)
    assert len(play.running) == 2
    play.end(next(iter(play.running)))
    assert len(play.running) == 2


# ---- what is not a score -----------------------------------------------------------------


def test_tokens_of_another_version_are_no_part_of_the_score() -> None:
    """The hold ran out, or an engine was late: the episode is repeated, then refused."""
    play = Play(settings())
    play.publish(4, final=True)
    name = next(iter(play.running))
    for _ in range(3):
        while name not in play.running:
            play.end(next(iter(play.running)))
        play.end(name, version=3)
    play.end_all()
    (evaluation,) = evaluations(play)
    assert evaluation["sampled"]["num_mixed"] == 1
    assert evaluation["sampled"]["num_episodes"] == 2


def test_a_failed_episode_is_tried_once_more_and_then_counted_as_failed_not_as_zero() -> None:
    """A broken sandbox is no worse policy."""
    play = Play(settings())
    play.publish(0)
    name = next(iter(play.running))
    for _ in range(2):
        while name not in play.running:
            play.end(next(iter(play.running)))
        play.end(name, Status.FAILED)
    play.end_all()
    (evaluation,) = evaluations(play)
    assert (evaluation["sampled"]["num_failed"], evaluation["sampled"]["success"]) == (1, 1.0)


def fail_all(play: Play) -> None:
    while play.running:
        play.end(next(iter(play.running)), Status.FAILED)


@pytest.mark.parametrize("is_last", [False, True])
def test_an_evaluation_in_which_every_episode_fails_is_named_and_never_a_zero(
    *, is_last: bool
) -> None:
    """A broken environment must not look like a policy that got everything wrong."""
    play = Play(settings(at_start=False, at_end=is_last, every_versions=1))
    play.publish(0)
    play.publish(1, final=is_last)
    fail_all(play)
    while "owed" in play.wakes:
        play.wake("owed")
        play.take(EventReported)
        fail_all(play)
    events = [each for each in play.take(EventReported) if each.kind == "evaluation_failed"]
    named = {each.text.partition(":")[0] for each in events}
    assert named >= {f"version 1 {mode}" for mode in play.given.modes}
    metrics = [name for line in play.take(StepRecorded) for name in line.metrics]
    assert not any(name.endswith(("/reward", "/solved")) for name in metrics)
    if not is_last:
        play.publish(2, final=True)
        play.end_all()
    [finished] = play.take(WorkFinished)
    assert [said.partition(" ")[0] for said in finished.summary["failed"]] == ["version"]
    assert ("version 1" in finished.problem) is is_last


def test_what_has_no_time_is_said_to_be_missing() -> None:
    play = Play(settings())
    play.publish(0)
    play.end("eval1-v0-sampled.0")
    play.wake("deadline/1")
    (evaluation,) = evaluations(play)
    assert evaluation["sampled"]["num_missing"] == 2
    assert evaluation["greedy"] is None
    assert play.take(EvaluationFinished) == [EvaluationFinished(version=0)]


def test_truncated_episodes_count_with_their_reward() -> None:
    play = Play(settings())
    play.publish(0)
    play.end("eval1-v0-sampled.0", Status.TRUNCATED, reward=0.0)
    play.end_all()
    (evaluation,) = evaluations(play)
    assert evaluation["sampled"]["truncated_ratio"] == pytest.approx(1 / 3)
    assert evaluation["sampled"]["success"] == pytest.approx(2 / 3)


def test_success_is_told_by_category_of_prompt() -> None:
    play = Play(settings())
    play.publish(0)
    play.end("eval1-v0-sampled.1", reward=0.0)
    play.end_all()
    (evaluation,) = evaluations(play)
    assert evaluation["sampled"]["success_by_category"] == {"even": 1.0, "odd": 0.0}


def test_the_same_conversations_are_kept_in_every_round() -> None:
    play = Play(settings())
    play.publish(0)
    play.end_all()
    play.publish(1, final=True)
    play.end_all()
    kept = [
        (one.version, one.greedy, one.prompt_id) for work in play.saved for one in work.transcripts
    ]
    assert kept == [(0, False, "q0"), (0, True, "q0"), (1, False, "q0"), (1, True, "q0")]
    assert play.saved[0].transcripts[0].messages[0]["content"] == "eval1-v0-sampled.0"


# ---- peers -------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ["agent-0", "session-0"])
def test_episodes_of_a_peer_that_restarted_are_run_again(actor: str) -> None:
    play = Play(settings())
    play.publish(0)
    before = {name: episode.attempt for name, episode in play.running.items()}
    play.running.clear()
    play.hear(PeerRestarted(actor=actor, incarnation=1))
    again = {name: episode.attempt for name, episode in play.running.items()}
    assert set(again.values()) <= {0, 1}
    assert any(attempt == 1 for attempt in again.values())
    assert len(again) == len(before)


def test_a_hold_that_is_not_granted_is_asked_for_again() -> None:
    play = Play(settings())
    play.answer = lambda: None  # type: ignore[method-assign]
    play.publish(0)
    play.asked.clear()
    play.feed(Unanswered("hold", "publisher", "no answer before the deadline"))
    assert [one.kind for one in play.take(EventReported)] == ["evaluation_late"]
    del play.answer
    play.wake("hold")
    assert play.running


def test_a_restarted_rollout_actor_is_told_again_that_it_may_start() -> None:
    play = Play(settings(at_start=False))
    play.publish(0)
    play.take(EvaluationFinished)
    play.hear(PeerRestarted(actor="rollout", incarnation=1))
    assert play.take(EvaluationFinished) == [EvaluationFinished(version=0)]


def test_a_drain_stops_the_round_and_lets_the_version_go() -> None:
    play = Play(settings())
    play.publish(0)
    play.ask(Drain(deadline_s=9.0))
    assert play.replies == [Drained(actor="evaluator")]
    assert play.take(ReleaseVersion)
    play.running.clear()
    play.publish(1, final=True)
    assert play.running == {}


def guests_only() -> Play:
    return Play(settings(agents={"guests": 0}))


def test_where_only_guests_play_the_first_evaluation_waits_for_one_without_an_end() -> None:
    """Nothing can be trained before either; and the version is not held while nobody is here."""
    play = guests_only()
    play.publish(0)
    assert (play.running, play.wakes) == ({}, {})
    assert play.core.working_on() == "waits for an agent from outside"
    play.hear(AgentReady(agent="guests", episodes_max=2), "guests")
    assert len(play.running) == 2
    play.end_all(reward=0.0)
    assert play.take(EvaluationFinished) == [EvaluationFinished(version=0)]


def test_guests_that_leave_in_the_middle_of_an_evaluation_are_waited_for() -> None:
    """What they had comes back as lost; nothing is sent to nobody."""
    play = guests_only()
    play.publish(0)
    play.hear(AgentReady(agent="guests", episodes_max=2), "guests")
    play.hear(AgentReady(agent="guests", episodes_max=0), "guests")
    for name in list(play.running):
        play.end(name, status=Status.ABORTED, reward=None)
    assert play.running == {}
    play.hear(AgentReady(agent="guests", episodes_max=8), "guests")
    assert len(play.running) == 4
    play.end_all(reward=1.0)
    (evaluation,) = evaluations(play)
    assert evaluation["sampled"]["num_episodes"] == 3


def test_a_last_evaluation_that_nobody_comes_for_is_told_missing_and_the_run_ends() -> None:
    play = guests_only()
    play.publish(0)
    play.hear(AgentReady(agent="guests", episodes_max=8), "guests")
    play.end_all(reward=1.0)
    play.hear(PeerRestarted(actor="guests", incarnation=1))
    play.publish(1, final=True)
    assert play.take(WorkFinished) == []
    assert play.wakes["patience"] == play.now_s + 100.0
    play.wake("patience")
    [event] = [one for one in play.take(EventReported) if one.kind == "evaluation_skipped"]
    assert event.text == "version 1 is not measured (nobody)"
    [finished] = play.take(WorkFinished)
    assert "version 1, the last one, has no score: nobody" in finished.problem
