"""Routes of a conversation: each token keeps those that the token after it was sampled through."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import xxhash
from unit.session.kit import (
    CALL_TEXT,
    QUESTION,
    ROUTES,
    Play,
    play,
    reply_to,
    tool_result,
)

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Answered, Unanswered
from milepost.actors.routes import routes_hashes
from milepost.actors.seal import seal_of
from milepost.configs.actors import TreeConfig
from milepost.messages.bulk import Bulk
from milepost.messages.engine import Generated
from milepost.messages.session import ChatRefused
from milepost.messages.shared import Purpose


class Told:
    """What the engine answered, and the prompt it was asked with, turn by turn."""

    def __init__(self, game: Play) -> None:
        self.game = game
        self.turns: list[tuple[int, int, np.ndarray]] = []
        """First token with routes, tokens of the prompt, routes."""

    def turn(self, messages: list[dict[str, Any]], text: str) -> dict[str, Any]:
        request = self.game.chat(messages)
        _, _, asked = self.game.open_ask()
        generated = self.game.sample(text)
        assert asked.routes_start is not None
        assert generated.routes is not None
        told = from_bulk(generated.routes)
        self.turns.append((asked.routes_start, asked.token_ids.shape[0], told))
        answer: Any = self.game.replies[request]
        message: dict[str, Any] = answer.message
        return message


def follow(call: dict[str, Any], content: str = "cat") -> dict[str, Any]:
    return tool_result(content, call["tool_calls"][0]["id"])


def certified(trajectory: Any) -> np.ndarray:
    """Routes of a row whose hashes and seal hold."""
    routes = from_bulk(trajectory.routes)
    assert routes.shape == (trajectory.token_ids.shape[0] - 1, 2, 2)
    start = 0
    for turn in trajectory.turns:
        own = routes[start : turn.end - 1].tobytes()
        assert turn.routes_hash == xxhash.xxh3_128_hexdigest(own)
        start = turn.end - 1
    assert seal_of(trajectory) == trajectory.certificate.seal
    return routes


def test_a_row_has_the_routes_of_every_turn_and_no_gap_between() -> None:
    """Text of the environment is routed when the next prompt is computed; the last token never."""
    game = play(routes=ROUTES)
    game.open()
    told = Told(game)
    call = told.turn([QUESTION], CALL_TEXT)
    history = [QUESTION, call, follow(call)]
    second = told.turn(history, CALL_TEXT)
    told.turn([*history, second, follow(second, "dog")], "a dog")
    game.finish()
    trajectory = game.take().trajectory
    routes = certified(trajectory)
    assert told.turns[0][0] == 0
    for (start, _, own), before in zip(told.turns[1:], trajectory.turns, strict=False):
        assert start == before.end - 1, "the stop token went through no pass of its own turn"
        np.testing.assert_array_equal(routes[start : start + len(own)], own)
    assert sum(len(own) for _, _, own in told.turns) == len(routes)


def test_a_retry_leaves_no_route_of_the_reply_that_it_replaces() -> None:
    game = play(routes=ROUTES)
    game.open()
    told = Told(game)
    call = told.turn([QUESTION], CALL_TEXT)
    history = [QUESTION, call, follow(call)]
    told.turn(history, "a long reply that is thrown away")
    told.turn(history, "cat")
    game.finish()
    routes = certified(game.take().trajectory)
    first, _, last = told.turns
    np.testing.assert_array_equal(routes, np.concatenate((first[2], last[2])))
    assert last[0] == len(first[2])


def test_every_branch_has_the_routes_of_its_own_path() -> None:
    """Branches share their beginning, and each goes on from there through experts of its own."""
    game = play(routes=ROUTES, tree=TreeConfig(leaf_picker="keep_all"))
    game.open()
    told = Told(game)
    call = told.turn([QUESTION], CALL_TEXT)
    told.turn([QUESTION, call, follow(call)], "cat")
    told.turn([QUESTION, call, follow(call, "dog")], "dog")
    game.finish()
    delivered = game.take()
    rows = [delivered.trajectory, *delivered.others]
    assert len(rows) == 2
    for row, last in zip(rows, told.turns[1:], strict=True):
        np.testing.assert_array_equal(certified(row), np.concatenate((told.turns[0][2], last[2])))


def test_another_try_after_a_failed_engine_asks_for_the_same_routes() -> None:
    """What a dead engine had computed is nobody's: nothing of it was committed."""
    game = play(routes=ROUTES, engines=("engine-0", "engine-1"))
    game.open()
    told = Told(game)
    call = told.turn([QUESTION], CALL_TEXT)
    game.chat([QUESTION, call, follow(call)])
    key, ask, asked = game.open_ask()
    del game.asks[key]
    game.handle(Unanswered(key, ask.to, "dead"))
    _, _, again = game.open_ask()
    assert again.routes_start == asked.routes_start == len(told.turns[0][2])
    game.sample("cat")
    game.finish()
    certified(game.take().trajectory)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"routes": None}, "no routes, uint8"),
        ({"routes": Bulk("uint8", (3, 2, 2), bytes(12))}, r"routes as uint8 \(3, 2, 2\), uint8"),
        ({"routes": Bulk("int16", (1, 2, 2), bytes(8))}, r"routes as int16"),
    ],
)
def test_a_reply_with_other_routes_than_asked_for_changes_nothing(
    fields: dict[str, Any], told: str
) -> None:
    """Routes that are missing or of other tokens would make a row that no trainer can replay."""
    game = play(routes=ROUTES)
    game.open()
    request = game.chat([QUESTION])
    game.sample("cat", **fields)
    answer = game.replies[request]
    assert isinstance(answer, ChatRefused)
    assert re.search(told, answer.reason), answer.reason
    assert game.core._sessions["g.0"].record.num_turns == 0


@pytest.mark.parametrize("fields", [{"purpose": Purpose.EVALUATE}, {"deliver_to": ""}])
def test_what_is_not_trained_asks_for_no_routes(fields: dict[str, Any]) -> None:
    game = play(routes=ROUTES)
    game.open(**fields)
    game.chat([QUESTION])
    assert game.open_ask()[2].routes_start is None


def test_routes_that_nobody_asked_for_are_refused() -> None:
    """An engine and a session that disagree about replay are of two topologies."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    key, ask, asked = game.open_ask()
    del game.asks[key]
    strange: Generated = reply_to(asked, "cat", routes=Bulk("uint8", (1, 2, 2), bytes(4)))
    game.handle(Answered(key, ask.to, strange))
    answer = game.replies[request]
    assert isinstance(answer, ChatRefused)
    assert "routes that nobody asked for" in answer.reason


def test_turns_cover_each_others_routes_without_a_gap() -> None:
    """The hashes of all turns together speak of every byte once."""
    routes = Bulk("uint8", (9, 2, 2), bytes(range(36)))
    assert list(routes_hashes(routes, [4, 10])) == [
        xxhash.xxh3_128_hexdigest(bytes(range(12))),
        xxhash.xxh3_128_hexdigest(bytes(range(12, 36))),
    ]
