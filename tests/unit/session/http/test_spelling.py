"""Anthropic's clients send the value of a call back: the row must go on as it was sampled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from unit.session.kit import CALL_TEXT, LOOKUP, Play, play, text_of

from milepost.actors.session.http.models import Models
from milepost.actors.session.http.service import Chats
from milepost.actors.session.sampled_calls import SampledCalls
from milepost.configs.actors import TreeConfig
from milepost.messages.session import ChatReply

if TYPE_CHECKING:
    from milepost.actors.session.http.door import Door
    from milepost.messages.shared import ChatMessage

TOOLS = [{"name": "lookup", "input_schema": LOOKUP["function"]["parameters"]}]
USUAL = '{"name": "kai", "field": "pet"}'
SWAPPED = '{"field": "pet", "name": "kai"}'


class Client:
    """Of the Anthropic door, on one session.

    Args:
        tree: of its session; None: it is linear.
    """

    def __init__(self, tree: TreeConfig | None = None) -> None:
        self.game: Play = play(tree=tree)
        self.game.open()
        self.chats = Chats(cast("Door", None), {}, (), Models("m", ()))
        self.prompt = ""
        """Of the newest turn, as its engine was asked."""

    def turn(self, messages: list[dict[str, Any]], text: str) -> ChatMessage:
        """One turn, which must be served; the reply."""
        body = json.dumps({"max_tokens": 60, "messages": messages, "tools": TOOLS}).encode()
        session = self.game.core._sessions["g.0"]
        asked = self.chats.read(session, "messages", (body,))
        request = self.game.chat(asked.messages, tools=asked.tools)
        assert request not in self.game.replies, self.game.replies[request]
        self.prompt = text_of(self.game.open_ask()[2].token_ids)
        self.game.sample(text)
        while self.game.works:
            self.game.work()
        reply = self.game.replies[request]
        assert isinstance(reply, ChatReply)
        return reply.message


def says(arguments: str) -> str:
    """A reply that makes one call."""
    return f'<tool_call>\n{{"name": "lookup", "arguments": {arguments}}}\n</tool_call>'


def user(text: str) -> dict[str, Any]:
    """A question."""
    return {"role": "user", "content": text}


def answered(reply: ChatMessage) -> list[dict[str, Any]]:
    """The call of a reply as its client repeats it, and its result."""
    call = reply["tool_calls"][0]
    value = json.loads(call["function"]["arguments"])
    use = {"type": "tool_use", "id": call["id"], "name": "lookup", "input": value}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "cat"}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]


@pytest.mark.parametrize("tree", [None, TreeConfig()])
@pytest.mark.parametrize(
    ("first", "second"), [(USUAL, SWAPPED), ('{"name": 1}', '{"name": true}'), (USUAL, USUAL)]
)
def test_a_turn_that_was_tried_again_goes_on_as_it_was_said_then(
    tree: TreeConfig | None, first: str, second: str
) -> None:
    """The discarded reply says the same value, or what Python takes for the same."""
    client, asked = Client(tree), [user("What is the pet of kai?")]
    discarded = client.turn(asked, says(first))
    kept = client.turn(asked, says(second))
    assert kept["tool_calls"][0]["id"] != discarded["tool_calls"][0]["id"]
    client.turn([*asked, *answered(kept)], "cat")
    assert says(second) in client.prompt
    assert client.prompt.count("<tool_call>") == 1


def test_each_agent_of_a_session_goes_on_with_its_own_call() -> None:
    """However many others say the same value in another spelling, before it and after it."""
    client, main = Client(TreeConfig()), [user("main")]
    first = client.turn(main, says(USUAL))
    agents = []
    for number in range(20):
        asked = [user(f"agent {number}")]
        agents.append((asked, client.turn(asked, says(SWAPPED if number % 2 else USUAL))))
    for asked, reply in [(main, first), *agents]:
        client.turn([*asked, *answered(reply)], "cat")
        assert says(reply["tool_calls"][0]["function"]["arguments"]) in client.prompt


def test_a_call_that_was_sampled_over_the_bus_is_known_at_the_door() -> None:
    """The session knows how its calls are spelled, whoever asked for them."""
    client, question = Client(), user("What is the pet of kai?")
    function = {"name": "lookup", "parameters": LOOKUP["function"]["parameters"]}
    request = client.game.chat([question], tools=[{"type": "function", "function": function}])
    client.game.sample(CALL_TEXT)
    reply: Any = client.game.replies[request]
    client.turn([question, *answered(reply.message)], "cat")
    assert CALL_TEXT in client.prompt


def reply_of(*calls: tuple[str, str]) -> ChatMessage:
    """A message of the policy with these ids and arguments."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
        for call_id, arguments in calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def test_a_call_is_spelled_as_it_was_sampled_when_it_says_the_same() -> None:
    """Some models write ids of their own; then the value decides, and of twins the later one."""
    calls = SampledCalls()
    calls.add(reply_of(("f:0", USUAL), ("f:1", '{"x":  1.0}')))
    calls.add(reply_of(("f:0", '{"x":  true}'), ("f:1", '{"x":   1}')))
    assert calls.spelling("f:0", json.loads(SWAPPED)) == USUAL
    assert calls.spelling("f:0", {"x": True}) == '{"x":  true}'
    assert calls.spelling("f:0", {"x": 1}) == '{"x":1}', "nobody said that"
    assert calls.spelling("f:1", {"x": 1}) == '{"x":   1}'
    assert calls.spelling("other", {}) == "{}"
    assert len(calls) == 4


def test_calls_that_were_thrown_away_are_not_kept() -> None:
    """A turn may be tried again without end; a session must not grow without end."""
    game = play()
    game.open()
    for _ in range(20):
        game.turn([user("again")], CALL_TEXT)
    assert len(game.core._sessions["g.0"].record.sampled_calls) == 1
