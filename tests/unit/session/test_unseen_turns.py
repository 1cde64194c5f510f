"""A turn that commits after its agent gave up waiting is not trained: the reward never saw it.

The reply and the agent's own time-out cross; only the number of the last reply that it received
tells what its verdict is about.
"""

from __future__ import annotations

from typing import Any

from unit.session.kit import (
    CALL_TEXT,
    QUESTION,
    Play,
    aborts,
    play,
    refused,
    text_of,
    tool_result,
)

from milepost.actors.arrays import from_bulk
from milepost.configs.actors import TreeConfig
from milepost.messages.buffer import TokensAccounted
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import ChatReply, ClientGone, TrajectorySent
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


def branching() -> tuple[Play, dict[str, Any]]:
    """A tree session with one reply to each of these, asked for in this order."""
    game = play(tree=TreeConfig())
    game.open()
    words = ("sub agent", "main", "title")
    said = {word: game.turn([{"role": "user", "content": word}], f"{word} says") for word in words}
    return game, said


def test_of_a_tree_replies_that_nobody_received_are_cut_off_wherever_they_stand() -> None:
    """An agent gave one chat up and went on with others: their rewards never saw its reply."""
    game, said = branching()
    request = game.finish(generation=3, received=(2, 3))
    delivered = game.take()
    rows = [delivered.trajectory, *delivered.others]
    assert [row.metadata["turns"] for row in rows] == [[2], [3]]
    assert not any(said["sub agent"]["content"] in text_of(row.token_ids) for row in rows)
    assert game.core.statistics()["turns_cut"] == 1
    assert game.desk.counters.accounts.keys() == {"unseen"}
    sent = game.replies[request]
    assert isinstance(sent, TrajectorySent)
    assert sent.num_sampled_tokens == sum(row.num_sampled_tokens for row in rows)


def test_of_a_tree_an_unreceived_reply_that_was_continued_stays() -> None:
    """Who continues it has repeated it word by word, wherever it had it from."""
    game, said = branching()
    first = {"role": "user", "content": "sub agent"}
    game.turn([first, said["sub agent"], {"role": "user", "content": "go on"}], "more")
    game.finish(generation=4, received=(2, 4))
    delivered = game.take()
    rows = [delivered.trajectory, *delivered.others]
    assert [row.metadata["turns"] for row in rows] == [[2], [1, 4]]


def test_a_verdict_that_cannot_tell_what_was_received_keeps_all_up_to_its_reply() -> None:
    game, _ = branching()
    game.finish(generation=2)
    assert len(game.take().others) == 1


def test_an_agent_that_waits_no_more_stops_its_own_turn() -> None:
    """Over the bus as through the door: the engine would sample on to the end for nobody."""
    game = play(tree=TreeConfig())
    game.open()
    given_up = game.chat([QUESTION], number=1)
    kept = game.chat([QUESTION], number=2)
    gone = ClientGone(trajectory_id="g.0", number=1, reason="its agent waits no more")
    game.tell(gone, "agent-1")
    assert given_up not in game.replies, "another asker's number"
    game.tell(gone, "agent-0")
    assert refused(game, given_up, "closed") == "its agent waits no more"
    assert aborts(game) == ["g.0/0/1/1"]
    del game.asks["generate/g.0/0/1/1"]
    game.sample("cat")
    assert isinstance(game.replies[kept], ChatReply)


def test_where_tokens_ended_is_told_with_each_version_and_only_once() -> None:
    """The waste statement of a step has what happened since the last one."""
    game, _ = two_turns()
    game.finish(generation=1)
    for version in (1, 2):
        game.tell(VersionPublished(version=version), "publisher")
    told = [each.message for each in game.told if isinstance(each.message, TokensAccounted)]
    assert [list(each.tokens) for each in told] == [["unseen"]]
