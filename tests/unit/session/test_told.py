"""What a session tells beside replies: parts while they are sampled, and what was said."""

from __future__ import annotations

import json
from typing import Any

from unit.session.kit import CALL_TEXT, QUESTION, STOP, Play, play, renderer, tool_result

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Answered
from milepost.configs.actors import TreeConfig
from milepost.messages.agent import ChatPart
from milepost.messages.codec import Codec
from milepost.messages.engine import GenerateRefused
from milepost.messages.session import (
    ChatRefused,
    ChatReply,
    ConversationAsked,
    ConversationTold,
    GeneratedPart,
)

TEXT = f"Let me look.\n{CALL_TEXT}"


def parts(game: Play) -> list[ChatPart]:
    return [tell.message for tell in game.told if isinstance(tell.message, ChatPart)]


def sampled(game: Play, start: int, end: int) -> None:
    request = game.open_ask()[2]
    assert request.stream
    token_ids = renderer().tokenizer.encode(TEXT + STOP)[start:end]
    message = GeneratedPart(
        request_id=request.request_id, start=start, token_ids=to_bulk(token_ids)
    )
    game.tell(message, "engine-0")


def ask(game: Play, *, attempt: int = 0, known: int = 0, name: str = "g.0") -> Any:
    replies = [each for each in game.replies.values() if isinstance(each, ChatReply)]
    asked = ConversationAsked(
        trajectory_id=name,
        attempt=attempt,
        known=known,
        received=tuple(reply.generation for reply in replies),
    )
    return game.replies[game.ask(asked)]


def test_parts_go_to_whoever_asked_numbered_and_make_the_same_message() -> None:
    """Over the bus as through the HTTP door; the call is whole when its text is."""
    game = play()
    game.open()
    request = game.chat([QUESTION], stream="mine")
    sampled(game, 0, 4)
    sampled(game, 4, 9)
    game.sample(TEXT)
    answer = game.replies[request]
    assert isinstance(answer, ChatReply)
    assert [part.number for part in parts(game)] == list(range(1, len(parts(game)) + 1))
    assert {part.stream for part in parts(game)} == {"mine"}
    assert {tell.to for tell in game.told if isinstance(tell.message, ChatPart)} == {"agent-0"}
    assert "".join(part.content for part in parts(game)) == answer.message["content"]
    calls = [call for part in parts(game) for call in part.tool_calls]
    assert calls == answer.message["tool_calls"]


def test_a_turn_that_asks_for_no_parts_gets_none() -> None:
    game = play()
    game.open()
    game.chat([QUESTION])
    assert not game.open_ask()[2].stream
    game.sample(TEXT)
    assert parts(game) == []


def test_the_conversation_is_told_once_there_is_one_and_only_what_is_new() -> None:
    game = play()
    game.open()
    assert ask(game) == ConversationTold()
    first = game.turn([QUESTION], TEXT)
    told = ask(game)
    assert (told.generation, told.num_turns, told.messages) == (1, 1, [QUESTION, first])
    assert ask(game, known=1).messages == []
    said = [QUESTION, first, tool_result("cat")]
    second = game.turn(said, "It is a cat.")
    assert ask(game, known=1).messages == [*said, second]
    for other in (ask(game, attempt=1), ask(game, name="h.0")):
        assert isinstance(other, ChatRefused)
        assert other.kind == "unknown_session"


def test_a_bound_and_a_fault_of_the_newest_request_are_told_until_a_turn_is_served() -> None:
    """An agent that cannot be believed about it: its program printed a reward all the same."""
    game = play()
    game.open()
    request = game.chat([QUESTION])
    key, generate, _ = game.open_ask()
    del game.asks[key]
    refused = GenerateRefused(request_id="x", reason="out of memory", retry=False)
    game.handle(Answered(key, generate.to, refused))
    assert isinstance(game.replies[request], ChatRefused)
    assert "out of memory" in ask(game).fault
    game.turn([QUESTION], TEXT)
    assert ask(game).fault == ""


def test_of_a_tree_the_newest_branch_is_told() -> None:
    game = play(tree=TreeConfig())
    game.open()
    game.turn([QUESTION], "one")
    other = [{"role": "user", "content": "and of amy?"}]
    second = game.turn(other, "two")
    assert ask(game).messages == [*other, second]


def test_what_nobody_received_is_not_told() -> None:
    """A reward function would judge words that the agent never read."""
    game = play(tree=TreeConfig())
    game.open()
    first = game.turn([QUESTION], "one")
    game.turn([QUESTION, first, {"role": "user", "content": "more"}], "two")
    game.turn([QUESTION], "three")
    asked = ConversationAsked(trajectory_id="g.0", attempt=0, received=(1,))
    told: Any = game.replies[game.ask(asked)]
    assert (told.generation, told.received, told.num_turns) == (1, (), 1)
    assert told.messages == [QUESTION, first]


def test_what_the_bus_cannot_carry_ends_nobody_s_conversation() -> None:
    """JSON may hold numbers without end; the answer to its agent's host must not fail over them."""
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    game = play()
    game.open()
    function = {"name": "f", "arguments": {"n": 10**40, "deep": deep}}
    called = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    game.turn([{**QUESTION, "at": 10**30, "label": [1]}, called, QUESTION], "cat")
    told = ask(game)
    codec = Codec()
    encoded = codec.encode(told)
    read: Any = codec.decode(encoded.type, encoded.body)
    assert [message["content"] for message in read.messages] == [
        QUESTION["content"], "x", QUESTION["content"], "cat",
    ]  # fmt: skip
    assert read.messages[0] == {**QUESTION, "label": [1]}
    arguments = read.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == function["arguments"]


def test_a_call_is_told_without_the_labels_that_the_bus_cannot_carry() -> None:
    """One label beside the arguments must not hide from the host that a tool was called."""
    deep: Any = 1
    for _ in range(13):
        deep = [deep]
    function = {"name": "f", "arguments": "{}", "deepest": deep, "deeper": [deep], "n": 2**70}
    call = {"id": "c", "type": "function", "function": function, "extra": {"n": 2**70}, "at": 1}
    game = play()
    game.open()
    game.turn([QUESTION, {"role": "assistant", "content": "x", "tool_calls": [call]}], "cat")
    function = {"name": "f", "arguments": "{}", "deepest": deep}
    call = {"id": "c", "type": "function", "function": function, "at": 1}
    assert ask(game).messages[1] == {"role": "assistant", "content": "x", "tool_calls": [call]}
