"""A turn that commits after its agent gave up waiting is not trained: the reward never saw it.

The reply and the agent's own time-out cross; only the number of the last reply that it received
tells what its verdict is about.
"""

from __future__ import annotations

from typing import Any

from unit.session.kit import CALL_TEXT, QUESTION, Play, play, tool_result

from milepost.actors.arrays import from_bulk
from milepost.messages.buffer import TokensAccounted
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import ChatReply
from milepost.messages.shared import FinishReason
from milepost.messages.trainer import VersionPublished


def two_turns(**second: Any) -> tuple[Play, list[Any]]:
    game = play()
    game.open()
    call = game.turn([QUESTION], CALL_TEXT)
    history = [QUESTION, call, tool_result("cat", call["tool_calls"][0]["id"])]
    game.turn(history, "cat", **second)
    return game, history


def test_replies_are_numbered_in_the_order_they_were_asked_for() -> None:
    game, history = two_turns()
    game.turn(history, "dog")
    replies = [each for each in game.replies.values() if isinstance(each, ChatReply)]
    assert [reply.generation for reply in replies] == [1, 2, 3]


def test_turns_after_the_last_reply_that_the_reward_saw_are_cut_off() -> None:
    game, _ = two_turns(finish_reason=FinishReason.LENGTH)
    game.finish(generation=1)
    trajectory = game.take().trajectory
    assert len(trajectory.turns) == 1
    assert trajectory.turns[0].end == trajectory.token_ids.shape[0]
    assert trajectory.spans[-1].end == trajectory.token_ids.shape[0]
    assert from_bulk(trajectory.loss_mask)[-1] == 1
    assert trajectory.metadata["limit"] == "", "what was cut off by a bound is not there any more"
    assert trajectory.certificate.canonical_mismatch is None
    assert game.core.statistics()["turns_cut"] == 1


def test_a_verdict_on_everything_that_is_there_cuts_nothing() -> None:
    for generation in (2, None):
        game, _ = two_turns()
        game.finish(generation=generation)
        assert len(game.take().trajectory.turns) == 2


def test_a_turn_that_was_tried_again_unseen_is_lost_by_name() -> None:
    """The reply that the reward is about is gone; the other one was never judged."""
    game, history = two_turns()
    game.turn(history, "dog")
    request = game.finish(generation=2)
    lost = game.replies[request]
    assert isinstance(lost, TrajectoryLost)
    assert lost.cause == (
        "the verdict is of reply 2, whose turn was tried again since: the row holds replies [1, 3]"
    )


def test_where_tokens_ended_is_told_with_each_version_and_only_once() -> None:
    """The waste statement of a step has what happened since the last one."""
    game, _ = two_turns()
    game.finish(generation=1)
    for version in (1, 2):
        game.tell(VersionPublished(version=version), "publisher")
    told = [each.message for each in game.told if isinstance(each.message, TokensAccounted)]
    assert [list(each.tokens) for each in told] == [["unseen"]]
