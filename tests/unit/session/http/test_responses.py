"""Responses: which items of a replayed conversation are one reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.session.kit import CALL_TEXT, Play, play, spec
from unit.session.test_tree import replies, rows_of

from milepost.actors.session.http.dialect import About, Reading
from milepost.actors.session.http.fields import Fields
from milepost.actors.session.http.replay import Replay
from milepost.actors.session.http.response_events import body_of
from milepost.actors.session.http.responses import Responses
from milepost.actors.session.run import record_maker
from milepost.actors.session.state import Session
from milepost.configs.actors import SessionConfig, TreeConfig

Items = list[dict[str, Any]]
ASKED: Items = [{"role": "user", "content": "hi"}]
GO: Items = [{"role": "user", "content": "go"}]
TOOL = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}


class Client:
    """Sends the whole conversation each time, as items, and keeps what it reads."""

    def __init__(self, game: Play) -> None:
        self._game = game
        self._replay = Replay()
        self._number = 0

    def turn(self, items: Items, text: str) -> Items:
        """The items of the next reply."""
        session = self._game.core._sessions["g.0"]
        body = json.dumps({"input": items, "tools": [TOOL]}).encode()
        fields = Fields(self._replay.begin([body]))
        asked = Responses().read(fields, Reading(session, self._replay, {}))
        request = self._game.chat(asked.messages, tools=asked.tools)
        assert request not in self._game.replies, self._game.replies[request]
        self._game.sample(text)
        reply: Any = self._game.replies[request]
        self._replay.answered(reply)
        self._number += 1
        made: Items = body_of(About(f"g_0_0_{self._number}", 0.0, 0, asked), reply)["output"]
        return made


def read(items: Items) -> list[dict[str, Any]]:
    """The conversation that items stand for."""
    record = record_maker(SessionConfig())(("user", "tool"))
    reading = Reading(Session(spec("g.0"), record, "rollout", 0.0), Replay(), {})
    return Responses().read(Fields(json.dumps({"input": items}).encode()), reading).messages


def text(content: str, item_id: str | None) -> dict[str, Any]:
    """A message of the assistant."""
    item = {"type": "message", "role": "assistant", "content": content}
    return item if item_id is None else {**item, "id": item_id}


@pytest.mark.parametrize("tree", [None, TreeConfig()], ids=["linear", "tree"])
def test_a_reply_that_follows_another_with_nothing_between_can_be_replayed(
    tree: TreeConfig | None,
) -> None:
    """A client may ask for one more reply; joined with the first, it is a reply nobody sampled."""
    game = play(tree=tree)
    game.open()
    client = Client(game)
    said = [*ASKED]
    said += client.turn(said, "one")
    said += client.turn(said, f"<think>hm</think>two\n{CALL_TEXT}")
    kinds = [item["type"] for item in said[1:]]
    assert kinds == ["message", "reasoning", "message", "function_call"]
    said += client.turn(said, "three")
    said += GO
    client.turn(said, "four")
    (row,) = rows_of(game)
    told = [(text.removeprefix("<think>hm</think>")[:3], trained) for text, trained in replies(row)]
    assert told == [("one", True), ("two", True), ("thr", True), ("fou", True)]


@pytest.mark.parametrize(
    ("ids", "contents"),
    [
        ([None, None, None], ["abc"]),
        (["msg_g_0_0_7_0", "msg_g_0_0_7_1", "msg_g_0_0_7_12"], ["abc"]),
        (["msg_g_0_0_7_0", "msg_g_0_0_8_0", "msg_g_0_0_8_1"], ["a", "bc"]),
        (["msg_g_0_0_7_0", None, "msg_g_0_0_8_0"], ["ab", "c"]),
        ([None, "msg_g_0_0_7_0", "msg_g_0_0_8_0"], ["ab", "c"]),
        # Of another server, or of the client: they say nothing of replies.
        (["msg_68ae", "msg_77bf", "x"], ["abc"]),
        (["msg_0", "msg_1", ""], ["abc"]),
    ],
)
def test_ids_tell_replies_apart_where_they_are_given(
    ids: list[str | None], contents: list[str]
) -> None:
    """Items without them are one reply as long as they are neighbours."""
    items = [text(content, item_id) for content, item_id in zip("abc", ids, strict=True)]
    assistant = [{"role": "assistant", "content": content} for content in contents]
    assert read([*ASKED, *items, *GO]) == [*ASKED, *assistant, *GO]


def test_an_id_that_is_no_text_says_nothing() -> None:
    """Whatever a client writes there, it is a label."""
    items = [{**text("a", None), "id": 5}, {**text("b", None), "id": None}]
    assert read([*ASKED, *items]) == [*ASKED, {"role": "assistant", "content": "ab"}]
