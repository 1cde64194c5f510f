"""The verdict on an episode: one ending, never a made-up reward."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.agent.kit import QUESTION, order

from milepost.actors.agent import EpisodeStopped, LimitReached, RewardResult
from milepost.actors.agent.episode import Record
from milepost.actors.agent.outcome import Ending, judge, read_ending
from milepost.actors.agent.reward import read_result
from milepost.messages.shared import Purpose, Status


def record(**fields: Any) -> Record:
    """An episode with one reply and a reward, but for these fields."""
    return Record(**{"num_turns": 1, "reward": 0.5, "conversation": [QUESTION], **fields})


@pytest.mark.parametrize(
    ("ending", "what", "status", "reward", "cause"),
    [
        (Ending(), record(), "completed", 0.5, ""),
        (Ending(), record(limit="turns_max"), "truncated", 0.5, "turns_max"),
        (Ending(limit="seconds_max"), record(), "truncated", 0.5, "seconds_max"),
        (Ending(), record(cut_by="tokens_max"), "truncated", 0.5, "tokens_max"),
        (Ending(error="ValueError: x"), record(), "failed", None, "ValueError: x"),
        (Ending(stopped="dropped"), record(), "aborted", None, "dropped"),
        (Ending(), record(stopped="the run drains"), "aborted", None, "the run drains"),
        (Ending(), record(num_turns=0), "failed", None, "no reply of the model: it called no chat"),
        (
            Ending(limit="seconds_max"),
            record(num_turns=0),
            "failed",
            None,
            "seconds_max was reached before the first reply",
        ),
        (Ending(), record(service_fault="engine: dead"), "failed", None, "engine: dead"),
        (Ending(), record(bad_report="bad report: nan"), "failed", None, "bad report: nan"),
        (Ending(), record(reward=None), "failed", None, "the agent reported no reward"),
        (
            Ending(limit="turns_max"),
            record(reward=None),
            "failed",
            None,
            "the agent reported no reward before turns_max ended the episode",
        ),
    ],
)
def test_each_way_to_end_has_its_status(
    ending: Ending, what: Record, status: str, reward: float | None, cause: str
) -> None:
    """The table of the module, row by row; a failure is never a reward of zero."""
    ended = judge(order(), ending, what, 1.5)
    assert (ended.status.value, ended.reward) == (status, reward)
    assert cause in ended.cause
    assert (ended.trajectory_id, ended.attempt, ended.seconds) == ("g.0", 0, 1.5)


def test_a_reward_function_counts_instead_of_the_report() -> None:
    """Its metrics stand beside the agent's; its failure is the episode's."""
    what = record(metrics={"calls": 2.0})
    result = RewardResult(reward=1.0, metrics={"solved": 1.0})
    ended = judge(order(), Ending(), what, 0.0, result=result)
    assert (ended.reward, ended.metrics) == (1.0, {"calls": 2.0, "solved": 1.0})
    failed = judge(order(), Ending(), what, 0.0, reward_fault="it took longer")
    assert (failed.status, failed.reward, failed.cause) == (Status.FAILED, None, "it took longer")
    truncated = judge(order(), Ending(limit="seconds_max"), record(reward=None), 0.0, result=result)
    assert (truncated.status, truncated.reward) == (Status.TRUNCATED, 1.0)


@pytest.mark.parametrize("value", [10**400, 1e200, (0.0, {"x": -1e200})])
def test_a_reward_function_gives_no_number_that_training_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"(reward|metric x) is .*1e\+30 at most"):
        read_result(value)


def test_evaluations_keep_the_conversation_for_people() -> None:
    """Training does not: nobody reads thousands of them."""
    evaluated = judge(order(purpose=Purpose.EVALUATE), Ending(), record(), 0.0)
    assert evaluated.info["messages"] == [QUESTION]
    assert "messages" not in judge(order(), Ending(), record(), 0.0).info


def test_what_code_raised_is_told_with_its_place() -> None:
    """One line is enough to find it; the whole trace stands in the actor's log."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("no\nsuch pet")
    told = read_ending(raised.value).error
    assert told.startswith("ValueError: invalid literal for int() with base 10: ")
    assert len(told.splitlines()) == 1
    assert "test_outcome.py:" in told
    assert read_ending(LimitReached("x", "turns_max")) == Ending(limit="turns_max")
    assert read_ending(EpisodeStopped("dropped")) == Ending(stopped="dropped")
    assert read_ending(None) == Ending()


texts = st.sampled_from(["", "x"])
endings = st.builds(Ending, texts, texts, texts)
records = st.builds(
    Record,
    num_turns=st.integers(0, 2),
    limit=texts,
    cut_by=texts,
    service_fault=texts,
    stopped=texts,
    reward=st.none() | st.floats(-1, 1),
    bad_report=texts,
)


@given(endings, records, st.none() | st.just(RewardResult(reward=1.0)), texts)
def test_a_reward_goes_with_completed_and_truncated_exactly(
    ending: Ending, what: Record, result: RewardResult | None, reward_fault: str
) -> None:
    """Whatever happened: with a reward there is no failure, with a failure there is no reward."""
    ended = judge(order(), ending, what, 0.0, result=result, reward_fault=reward_fault)
    assert (ended.reward is not None) == (ended.status in (Status.COMPLETED, Status.TRUNCATED))
    assert (ended.cause == "") == (ended.status is Status.COMPLETED)
    if ended.reward is not None:
        assert what.num_turns
        faults = (ending.error, ending.stopped, what.service_fault, reward_fault)
        assert not any(faults)
