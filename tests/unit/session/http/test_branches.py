"""A session is looked at while it goes on: what is shown is the moment of the question."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.session.kit import QUESTION, Play, play

from milepost.actors.session.http.branches import Answer, BranchCopy, copies_of, tree_of
from milepost.actors.session.http.records import records_of
from milepost.configs.actors import TreeConfig
from milepost.messages.shared import Purpose

USER = {"role": "user", "content": "and now?"}
ANSWERS = {2: Answer(1.0, 2.0, "two"), 3: Answer(3.0, 4.0, "three")}


def grown(game: Play) -> None:
    """One more turn, another try of the newest, and in a tree a branch."""
    first = game.turn([QUESTION], "cat")
    game.turn([QUESTION, first, USER], "dog")


def shown(branches: list[BranchCopy]) -> list[tuple[list[int], bool, str]]:
    return [
        (
            branch.token_ids.tolist(),
            branch.leaf.retried,
            records_of([branch], ANSWERS).decode(),
        )
        for branch in branches
    ]


@pytest.mark.parametrize("tree", [None, TreeConfig()], ids=["linear", "tree"])
def test_what_was_asked_for_is_shown_whatever_comes_meanwhile(tree: TreeConfig | None) -> None:
    """Copied or rebuilt in the thread, the branches are those that there were."""
    game = play(tree=tree)
    game.open()
    record = game.core._sessions["g.0"].record
    grown(game)
    now = shown(copies_of(record.branches()))
    later = record.later()
    before = tree_of(copies_of(later()), ANSWERS)
    first = {"role": "assistant", "content": "cat"}
    game.turn([QUESTION, first, USER], "bird")
    if tree:
        game.turn([USER], "fish")
    assert shown(copies_of(later())) == now
    assert tree_of(copies_of(later()), ANSWERS) == before
    assert shown(copies_of(record.branches())) != now


def test_records_are_requests_and_responses_in_order() -> None:
    """As JSON, each with the ids that the engine was sent; no session, no records."""
    game = play()
    game.open()
    record = game.core._sessions["g.0"].record
    assert records_of([], {}) == b"[]"
    grown(game)
    (branch,) = copies_of(record.branches())
    one, two = json.loads(records_of([branch], ANSWERS))
    assert (one["timestamp"], two["request_timestamp"], two["timestamp"]) == (0.0, 1.0, 2.0)
    row = branch.token_ids.tolist()
    assert one["request"]["input_ids"] == row[: branch.turns[0].prompt_end]
    assert two["request"]["input_ids"] == row[: branch.turns[1].prompt_end]
    assert two["response"]["choices"][0]["message"]["content"] == "dog"


def test_a_turn_that_was_tried_again_has_the_times_of_its_last_reply() -> None:
    """And the turn before it has its own, not those of the reply that was thrown away."""
    game = play()
    game.open()
    grown(game)
    game.turn([QUESTION, {"role": "assistant", "content": "cat"}, USER], "bird")
    branches = copies_of(game.core._sessions["g.0"].record.branches())
    one, two = json.loads(records_of(branches, ANSWERS))
    assert (one["request_timestamp"], one["timestamp"]) == (0.0, 0.0)
    assert (two["request_timestamp"], two["timestamp"]) == (3.0, 4.0)


def test_nodes_of_a_tree_say_when_and_as_what_they_were_answered() -> None:
    """Whoever kept a response finds it by its id; a reply over the bus had none."""
    game = play(tree=TreeConfig())
    game.open()
    grown(game)
    game.turn([USER], "fish")
    told = tree_of(copies_of(game.core._sessions["g.0"].record.branches()), ANSWERS)
    assert [(node["id"], node["committed_at"], node["response_id"]) for node in told["nodes"]] == [
        (1, 0.0, None),
        (2, 2.0, "two"),
        (3, 4.0, "three"),
    ]


def test_records_say_which_replies_an_adapter_sampled() -> None:
    """Their log-probs stand beside them, and are of weights that no version contains."""
    game = play()
    game.desk.adapters = ("terse",)
    game.open(purpose=Purpose.EVALUATE, deliver_to="evaluator")
    asked = game.chat([QUESTION], adapter="terse")
    game.sample("cat")
    answer: Any = game.replies[asked]
    game.turn([QUESTION, answer.message, USER], "dog")
    (branch,) = copies_of(game.core._sessions["g.0"].record.branches())
    one, two = json.loads(records_of([branch], {}))
    assert one["response"]["choices"][0]["meta_info"]["adapter"] == "terse"
    assert "adapter" not in two["response"]["choices"][0]["meta_info"]
