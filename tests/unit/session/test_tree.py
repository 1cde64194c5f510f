"""Tree sessions: forks, fresh starts and retries; each reply trained once, nothing ever deleted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from unit.session.kit import (
    LOOKUP,
    QUESTION,
    Play,
    ids,
    play,
    refused,
    renderer,
    reply_to,
    text_of,
    tool_result,
)

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Answered, Unanswered
from milepost.actors.session.leaves import Leaf
from milepost.configs.actors import TreeConfig
from milepost.messages.session import ChatReply
from milepost.messages.shared import FinishReason, Status
from milepost.messages.trajectory import Provenance

TREE = TreeConfig()


def user(text: str) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": text}


def rows_of(game: Play) -> list[Any]:
    """The rows that the verdict delivers."""
    game.finish()
    if game.works:
        game.work()
    message = game.take()
    return [message.trajectory, *message.others]


def replies(row: Any) -> list[tuple[str, bool]]:
    """Text of each reply of a row, and whether it is trained."""
    tokens = from_bulk(row.token_ids)
    tokenizer = renderer().tokenizer
    return [
        (tokenizer.decode(tokens[turn.prompt_end : turn.end].tolist()[:-1]), turn.trained)
        for turn in row.turns
    ]


def grown(tree: TreeConfig = TREE) -> tuple[Play, dict[str, list[dict[str, Any]]]]:
    """A question, two forks of it, and a fresh conversation; the histories by their last reply."""
    game = play(tree=tree)
    game.open()
    histories: dict[str, list[dict[str, Any]]] = {}

    def turn(messages: list[dict[str, Any]], text: str) -> None:
        histories[text] = [*messages, game.turn(messages, text)]

    turn([QUESTION], "one")
    turn([*histories["one"], user("left")], "two")
    turn([*histories["one"], user("right")], "three")
    turn([*histories["three"], user("on")], "four")
    turn([user("something else")], "five")
    turn([*histories["two"], user("on")], "six")
    return game, histories


def test_shared_replies_are_trained_in_the_earliest_leaf_only() -> None:
    """Three conversations of one session are three rows; what two of them share is one gradient."""
    game, _ = grown()
    first, second, third = rows_of(game)
    assert replies(first) == [("one", True), ("three", True), ("four", True)]
    assert replies(second) == [("five", True)]
    assert replies(third) == [("one", False), ("two", True), ("six", True)]
    assert [row.row for row in (first, second, third)] == [0, 1, 2]
    assert {row.num_rows for row in (first, second, third)} == {3}
    for row in (first, second, third):
        sampled = from_bulk(row.provenance) == Provenance.SAMPLED
        expected = np.zeros(len(sampled), dtype=bool)
        for part in row.turns:
            expected[part.prompt_end : part.end] = part.trained
        assert (from_bulk(row.loss_mask) == expected).all()
        assert (sampled >= expected).all()
    whole = sum(int(from_bulk(row.loss_mask).sum()) for row in (first, second, third))
    assert {row.trajectory_loss_tokens for row in (first, second, third)} == {whole}


def test_a_fork_begins_with_the_tokens_that_were_sampled_before_it() -> None:
    """Both forks have the same row up to where they part."""
    game, _ = grown()
    first, _, third = (ids(row.token_ids) for row in rows_of(game))
    shared = next(at for at, (a, b) in enumerate(zip(first, third, strict=False)) if a != b)
    text = renderer().tokenizer.decode(first[:shared])
    assert "one<|im_end|>\n<|im_start|>user\n" in text


def test_retries_are_dropped_and_their_tokens_accounted_for() -> None:
    """A later reply at the same place took its place; a leaf that went on is none."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "one")
    game.turn([QUESTION, one, user("go")], "bad")
    game.turn([QUESTION, one, user("go")], "good")
    (row,) = rows_of(game)
    assert replies(row) == [("one", True), ("good", True)]
    assert game.desk.counters.accounts == {"not_trained": 4}
    assert row.num_rows == 1
    assert row.trajectory_loss_tokens == 0


def test_a_first_turn_tried_again_is_a_retry_and_another_first_prompt_is_none() -> None:
    """Roots are told apart by what they were asked: a sub-agent's prompt is no retry."""
    game = play(tree=TREE)
    game.open()
    game.turn([QUESTION], "bad")
    game.turn([QUESTION], "good")
    game.turn([user("you are a sub-agent")], "sub")
    assert [replies(row) for row in rows_of(game)] == [[("good", True)], [("sub", True)]]


def test_twins_are_told_apart_by_the_later_one() -> None:
    """The same reply twice to the same history: who goes on goes on from the newer one."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "same")
    again = game.turn([QUESTION], "same")
    assert one == again
    game.turn([QUESTION, one, user("go")], "end")
    record: Any = game.core._sessions["g.0"].record
    assert record._nodes[3].parent.number == 2
    (row,) = rows_of(game)
    assert replies(row) == [("same", True), ("end", True)]


def test_a_rewritten_reply_begins_a_new_conversation() -> None:
    """Compaction: what the harness made of the past is prompt, and carries no loss."""
    game = play(tree=TREE)
    game.open()
    game.turn([QUESTION], "a long story")
    summary = {"role": "assistant", "content": "short"}
    game.turn([QUESTION, summary, user("go on")], "end")
    first, second = rows_of(game)
    assert replies(first) == [("a long story", True)]
    assert replies(second) == [("end", True)]
    assert "short" in text_of(second.token_ids)


def test_other_tools_begin_a_new_conversation() -> None:
    """Tokens rendered under other tools are another prefix, in a tree too."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "one")
    game.chat([QUESTION, one, user("go")], tools=[])
    game.sample("bare")
    first, second = rows_of(game)
    assert len(first.turns) == len(second.turns) == 1
    assert "lookup" not in text_of(second.token_ids).partition("user")[0]


def test_requests_at_the_same_time_become_siblings() -> None:
    """Sub-agents run in parallel; neither supersedes the other, whoever answers first."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "one")
    left = game.chat([QUESTION, one, user("left")])
    right = game.chat([QUESTION, one, user("right")])
    (key_left, ask_left), (key_right, ask_right) = game.asks.items()
    game.asks.clear()
    game.handle(Answered(key_right, ask_right.to, reply_to(message(ask_right), "R")))
    game.handle(Answered(key_left, ask_left.to, reply_to(message(ask_left), "L")))
    assert isinstance(game.replies[left], ChatReply)
    assert isinstance(game.replies[right], ChatReply)
    record: Any = game.core._sessions["g.0"].record
    assert sorted(record._nodes) == [1, 2, 3], "ordered by when they were asked for"
    assert record._nodes[2].turn.message["content"] == "L"


def message(ask: Any) -> Any:
    """The request of a question to an engine."""
    return ask.message


def test_the_same_question_at_the_same_time_is_sampled_with_another_seed() -> None:
    """The same seed at the same place says the same: a twin would teach nothing."""
    game = play(tree=TREE)
    game.open()
    game.chat([QUESTION])
    game.chat([QUESTION])
    seeds = {message(ask).sampling.seed for ask in game.asks.values()}
    assert len(seeds) == 2


def test_one_of_two_turns_may_fail_and_the_session_moves_once() -> None:
    """Both were on the engine that died; the second finds the session moved already."""
    game = play(engines=("engine-0", "engine-1"), tree=TREE)
    game.open()
    game.chat([QUESTION])
    game.chat([user("other")])
    for key, ask in list(game.asks.items()):
        assert ask.to == "engine-0"
        del game.asks[key]
        game.handle(Unanswered(key, ask.to, "dead"))
    assert [ask.to for ask in game.asks.values()] == ["engine-1", "engine-1"]
    assert game.desk.counters.engine_moves == 1


def test_a_reply_that_was_cut_off_cannot_be_continued_but_may_be_left() -> None:
    """As in a linear session; a branch beside it goes on, and its own row says that it was cut."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "one")
    cut = game.turn([QUESTION, one, user("go")], "cut", finish_reason=FinishReason.LENGTH)
    request = game.chat([QUESTION, one, user("go"), cut, user("on")])
    assert "turn 2 of this branch was cut off" in refused(game, request, "truncated")
    game.turn([QUESTION, one, user("elsewhere")], "fine")
    (row,) = rows_of(game)
    assert row.status is Status.COMPLETED
    assert replies(row) == [("one", True), ("fine", True)]


def test_each_row_says_whether_it_was_truncated() -> None:
    """One branch ended, the other ran into a bound."""
    game = play(tree=TreeConfig(leaf_picker="keep_all"))
    game.open()
    game.turn([QUESTION], "fine")
    game.turn([user("other")], "cut", finish_reason=FinishReason.LENGTH)
    fine, cut = rows_of(game)
    assert (fine.status, fine.metadata["limit"]) == (Status.COMPLETED, "")
    assert (cut.status, cut.metadata["limit"]) == (Status.TRUNCATED, "reply_tokens_max")


def test_the_node_cap_is_named() -> None:
    """Turns in flight count, so that no burst gets past it; the trajectory is truncated."""
    game = play(tree=TreeConfig(nodes_max=2))
    game.open()
    game.turn([QUESTION], "one")
    game.chat([user("two")])
    request = game.chat([user("three")])
    told = refused(game, request, "limit")
    assert "1 turns were generated in all branches and 1 are in flight" in told
    assert "nodes_max is 2" in told
    game.sample("two")
    assert {row.num_rows for row in rows_of(game)} == {2}


def test_the_tokens_of_all_branches_are_bounded() -> None:
    """Memory follows from the topology, whatever a harness does."""
    game = play(tree=TreeConfig(tokens_max=8))
    game.open()
    game.turn([QUESTION], "one")
    assert "tree.tokens_max is 8" in refused(game, game.chat([user("two")]), "limit")


def test_a_role_that_cannot_be_appended_is_refused_and_changes_nothing() -> None:
    """Planning works beside the tree."""
    game = play(tree=TREE)
    game.open()
    one = game.turn([QUESTION], "one")
    record: Any = game.core._sessions["g.0"].record
    before, record._appended_roles = record.num_tokens, frozenset({"user", "tool"})
    refused(game, game.chat([QUESTION, one, {"role": "developer", "content": "x"}]), "bad_request")
    assert record.num_tokens == before
    assert not game.core._sessions["g.0"].flights


def newest_only(leaves: list[Leaf]) -> list[Leaf]:
    """A picker of somebody's own."""
    return leaves[-1:]


def twice(leaves: list[Leaf]) -> list[Leaf]:
    """A broken post-processor: trains shared replies in every leaf."""
    return leaves


def stranger(leaves: list[Leaf]) -> list[Leaf]:
    """A broken picker: makes a leaf up."""
    return [replace(leaf, number=99) for leaf in leaves[:1]]


def test_a_picker_of_the_user_s_own() -> None:
    """Named by import path, done in a thread: nobody knows what it costs."""
    game, _ = grown(TreeConfig(leaf_picker=f"{__name__}:newest_only"))
    (row,) = rows_of(game)
    assert replies(row) == [("one", True), ("two", True), ("six", True)]


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        (
            {"leaf_picker": f"{__name__}:stranger"},
            r"leaf_picker .*:stranger returned leaves \[99\]",
        ),
        ({"leaf_post_processor": f"{__name__}:twice"}, "trains turn 1 in leaf 4 and in leaf 6"),
    ],
)
def test_a_hook_that_breaks_its_contract_loses_the_trajectory_by_name(
    hooks: dict[str, Any], told: str
) -> None:
    """A reply trained twice would be a mistake that no loss curve shows."""
    game, _ = grown(TreeConfig(**hooks))
    request = game.finish()
    game.work()
    lost: Any = game.replies[request]
    assert re.search(told, lost.cause), lost.cause


FORKS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.sampled_from(["kai", "mia"])),
    min_size=1,
    max_size=12,
)


@given(FORKS, st.booleans())
def test_every_kept_reply_is_trained_exactly_once(
    script: list[tuple[int, str, str]],
    keep: bool,  # noqa: FBT001
) -> None:
    """Random forks, twins and fresh starts against a slow model that keeps every history whole.

    Each row is, token by token, the prompt that the engine got for its last turn and the reply to
    it; and over all rows each reply that any row holds carries loss in exactly one.
    """
    game = play(tree=TreeConfig(leaf_picker="keep_all" if keep else "drop_retries"))
    game.open()
    histories: list[list[dict[str, Any]]] = [[]]
    seen: dict[int, tuple[list[int], list[int]]] = {}
    for number, (base, asked, said) in enumerate(script, start=1):
        history = histories[base % len(histories)]
        messages = [*history, user(asked)]
        game.chat(messages)
        _, _, request = game.open_ask()
        answer = game.sample(said)
        seen[number] = (ids(request.token_ids), ids(answer.token_ids))
        histories.append([*messages, {"role": "assistant", "content": said}])
    rows = rows_of(game)
    trained: dict[tuple[int, ...], int] = {}
    for row in rows:
        tokens = ids(row.token_ids)
        assert tokens in [prompt + reply for prompt, reply in seen.values()]
        for turn in row.turns:
            place = tuple(tokens[: turn.end])
            trained[place] = trained.get(place, 0) + turn.trained
    # Twins have the same tokens: each of them is trained, for each was sampled.
    sampled = [tuple(prompt + reply) for prompt, reply in seen.values()]
    for place, count in trained.items():
        assert 1 <= count <= sampled.count(place)
    if keep:
        assert sum(trained.values()) == len(script)


def test_tool_turns_in_a_tree_are_rendered_as_in_a_linear_session() -> None:
    """The same conversation gives the same row, whichever record holds it."""
    call = '<tool_call>\n{"name": "lookup", "arguments": {"name": "kai"}}\n</tool_call>'
    made = []
    for tree in (None, TREE):
        game = play(tree=tree)
        game.open()
        said = game.turn([QUESTION], call)
        game.turn([QUESTION, said, tool_result("cat", said["tool_calls"][0]["id"])], "cat")
        made.append(rows_of(game)[0])
    linear, branched = made
    assert ids(linear.token_ids) == ids(branched.token_ids)
    assert linear.turns == branched.turns
    assert linear.spans == branched.spans
    assert LOOKUP["function"]["name"] in text_of(linear.token_ids)


def test_branches_that_the_verdict_never_saw_are_cut_off() -> None:
    """What came after the last reply that the agent received has no reward."""
    game, _ = grown(TreeConfig(leaf_picker="keep_all"))
    game.finish(generation=4)
    message = game.take()
    rows = (message.trajectory, *message.others)
    assert [replies(row) for row in rows] == [
        [("one", True), ("two", True)],
        [("one", False), ("three", True), ("four", True)],
    ]
    assert game.core.statistics()["turns_cut"] == 2
