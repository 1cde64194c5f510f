"""The treasure hunt: what a hint says, when a hunt is over, how the way is paid."""

from __future__ import annotations

import json
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json as msgspec_json

from milepost.configs.recipes.hunt.clerk import Clerk, converse, demonstrations
from milepost.configs.recipes.hunt.environment import HuntEnvironment
from milepost.configs.recipes.hunt.island import (
    DIRECTIONS,
    FOUND,
    HELD_OUT_STARTS,
    HERE,
    NOTHING,
    STARTS,
    TRAINING_STARTS,
    Offset,
    distance,
    hint,
    prompt_of,
    prompts,
    start_of,
    turns_max,
)
from milepost.messages.shared import ChatMessage, Prompt


def call(name: str, arguments: str = "{}") -> ChatMessage:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "call-1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def move(direction: str) -> ChatMessage:
    return call("move", json.dumps({"direction": direction}))


def way_home(start: Offset) -> list[str]:
    east, north = start
    return ["east" if east > 0 else "west"] * abs(east) + (
        ["north" if north > 0 else "south"] * abs(north)
    )


def test_walking_to_the_treasure_and_digging_earns_everything_from_every_start() -> None:
    for start in STARTS:
        environment = HuntEnvironment(prompt_of("p", start))
        told = hint(start)
        for direction in way_home(start):
            assert told != HERE
            (result,) = environment.react(move(direction))
            told = result["content"]
        assert told == HERE
        assert environment.react(call("dig")) == [], "the hunt is over"
        assert (environment.reward, environment.solved) == (1.0, True)


def test_the_way_covered_earns_its_share_of_half_and_walking_away_loses_it() -> None:
    environment = HuntEnvironment(prompt_of("p", (2, 0)))
    environment.react(move("east"))
    assert environment.reward == 0.25
    environment.react(move("west"))
    environment.react(move("west"))
    assert environment.reward == 0.0, "farther than at the start is not below nothing"


def test_digging_in_the_wrong_place_costs_a_turn_and_nothing_else() -> None:
    environment = HuntEnvironment(prompt_of("p", (1, 0)))
    assert environment.react(call("dig"))[0]["content"] == NOTHING
    assert environment.react(move("east"))[0]["content"] == HERE
    assert environment.react(call("dig")) == []
    assert environment.solved


def test_a_hunt_ends_when_its_turns_are_used_up() -> None:
    start = (1, 1)
    environment = HuntEnvironment(prompt_of("p", start))
    for turn in range(1, turns_max(start) + 1):
        assert bool(environment.react(move("east"))) == (turn < turns_max(start))


def test_talking_instead_of_acting_ends_the_hunt() -> None:
    environment = HuntEnvironment(prompt_of("p", (1, 0)))
    assert environment.react({"role": "assistant", "content": "east"}) == []
    assert environment.reward == 0.0


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (call("move", "{"), "error: arguments are not JSON"),
        (call("move", '{"direction": "up"}'), "error: move takes a direction"),
        (call("move", '{"direction": 3}'), "error: move takes a direction"),
        (call("move"), "error: move takes a direction"),
        (call("fly"), "error: no tool fly"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_and_the_hunt_goes_on(
    message: ChatMessage, text: str
) -> None:
    (result,) = HuntEnvironment(prompt_of("p", (2, 2))).react(message)
    assert result["content"] == text


@given(st.text(max_size=60))
def test_no_argument_text_can_break_a_hunt(text: str) -> None:
    environment = HuntEnvironment(prompt_of("p", (2, 2)))
    assert environment.react(call("move", text))[0]["role"] == "tool"


@pytest.mark.parametrize(
    ("offset", "text"),
    [((2, 1), "2 east, 1 north"), ((-1, 0), "1 west"), ((0, -2), "2 south"), ((0, 0), "here")],
)
def test_a_hint_says_where_the_treasure_lies(offset: Offset, text: str) -> None:
    assert hint(offset) == text


def test_held_out_starts_never_occur_in_training_and_cover_each_distance() -> None:
    assert len(HELD_OUT_STARTS) == 6
    assert not set(HELD_OUT_STARTS) & set(TRAINING_STARTS)
    assert {distance(start) for start in HELD_OUT_STARTS} == {1, 2, 3, 4}
    assert {start_of(prompt) for prompt in prompts("train", 0, {})} == set(TRAINING_STARTS)
    assert {start_of(prompt) for prompt in prompts("held_out", 0, {})} == set(HELD_OUT_STARTS)


def test_a_split_that_does_not_exist_is_refused() -> None:
    for source in (prompts, demonstrations):
        with pytest.raises(ValueError, match="split 'test' does not exist: use train or held_out"):
            source("test", 0, {})


def test_a_prompt_survives_the_journey_and_a_foreign_one_is_refused_by_name() -> None:
    prompt = prompt_of("p", (2, -1))
    there = msgspec_json.decode(msgspec_json.encode(prompt), type=Prompt)
    assert start_of(there) == (2, -1)
    with pytest.raises(ValueError, match="prompt q: start None is not two numbers"):
        start_of(Prompt(prompt_id="q", messages=[]))


def test_a_perfect_hunter_finds_every_treasure() -> None:
    for number, start in enumerate(STARTS):
        prompt = prompt_of("p", start)
        messages = converse(Clerk(smart=1.0), prompt, Random(number))
        actions = [message for message in messages if message["role"] == "assistant"]
        assert len(actions) == distance(start) + 1
        assert messages[-1]["tool_calls"][0]["function"]["name"] == "dig"


def test_the_careless_hunter_finds_few_and_is_told_the_truth() -> None:
    found = 0
    for prompt in islice(demonstrations("train", 0, {}), 600):
        environment = HuntEnvironment(prompt)
        told = [m["content"] for m in prompt.messages if m["role"] == "tool"]
        answers = [
            result["content"]
            for message in prompt.messages
            if message["role"] == "assistant"
            for result in environment.react(message)
        ]
        assert answers == told
        assert FOUND not in told, "the hunt ends with the digging"
        found += environment.solved
    assert 0.1 < found / 600 < 0.4
    assert all(way in DIRECTIONS for way in way_home((2, -2)))
