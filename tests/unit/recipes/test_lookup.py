"""Directory look-up: who may be asked about, what counts as following, what a clerk teaches."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError
from msgspec import json as msgspec_json

from milepost.configs.recipes.lookup.clerk import Clerk, converse, demonstrations
from milepost.configs.recipes.lookup.directory import (
    FACTS,
    FIELDS,
    HELD_OUT_SUBJECTS,
    LINKS,
    PEOPLE,
    TRAINING_SUBJECTS,
    UNKNOWN,
    VALUES,
    Directory,
    draw_question,
    prompt_of,
    prompts,
    question_of,
)
from milepost.configs.recipes.lookup.environment import TURNS_MAX, LookupEnvironment
from milepost.messages.shared import ChatMessage, Prompt


def call(name: str, field: str, tool: str = "lookup") -> ChatMessage:
    arguments = json.dumps({"name": name, "field": field})
    return call_with(arguments, tool)


def call_with(arguments: str, tool: str = "lookup") -> ChatMessage:
    function = {"name": tool, "arguments": arguments}
    calls = [{"id": "call-1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(text: str) -> ChatMessage:
    return {"role": "assistant", "content": text}


def a_prompt(hops: int, seed: int = 0) -> Prompt:
    return prompt_of("p", draw_question(Random(seed), TRAINING_SUBJECTS, hops))


def links_of(prompt: Prompt) -> list[tuple[str, str, str]]:
    """(name, field, value) of each right call, found here by walking, not by the code's own way."""
    question = question_of(prompt)
    directory, name, links = Directory(question.directory_seed), question.subject, []
    for field in question.path:
        value = directory.lookup(name, field)
        links.append((name, field, value))
        name = value
    return links


def test_following_every_link_and_answering_earns_everything() -> None:
    for hops in (1, 2, 3):
        prompt = a_prompt(hops)
        environment = LookupEnvironment(prompt)
        for name, field, value in links_of(prompt):
            (result,) = environment.react(call(name, field))
            assert result == {"role": "tool", "tool_call_id": "call-1", "content": value}
        assert environment.react(answer(f" {value}\n")) == []
        assert (environment.reward, environment.solved) == (1.0, True)
        assert environment.metrics["links_followed"] == hops


def test_each_link_followed_in_order_earns_its_share_of_half() -> None:
    """Without this most groups of a weak model have no spread, and nothing is learned."""
    prompt = a_prompt(3)
    for followed in range(4):
        environment = LookupEnvironment(prompt)
        for name, field, _ in links_of(prompt)[:followed]:
            environment.react(call(name, field))
        environment.react(answer("nothing of this"))
        assert environment.reward == pytest.approx(0.5 * followed / 3)
        assert not environment.solved


def test_links_out_of_order_earn_nothing() -> None:
    prompt = a_prompt(3)
    environment = LookupEnvironment(prompt)
    for name, field, _ in reversed(links_of(prompt)[1:]):
        environment.react(call(name, field))
    assert environment.reward == 0.0


def test_the_right_answer_counts_however_it_was_found() -> None:
    prompt = a_prompt(2)
    environment = LookupEnvironment(prompt)
    environment.react(answer(str(prompt.label)))
    assert environment.reward == 1.0


def test_an_episode_ends_after_its_last_turn_without_an_answer() -> None:
    prompt = a_prompt(1)
    environment = LookupEnvironment(prompt)
    name, field, _ = links_of(prompt)[0]
    for turn in range(1, TURNS_MAX + 1):
        assert bool(environment.react(call(name, field))) == (turn < TURNS_MAX)
    assert environment.reward == 0.5, "the link was followed once, and not twice"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (call_with("{not json"), "error: arguments are not JSON"),
        (call_with('["kai", "pet"]'), "error: lookup takes name and field"),
        (call_with('{"name": "kai"}'), "error: lookup takes name and field"),
        (call("kai", "shoe"), "error: no field shoe"),
        (call("kai", "pet", tool="find"), "error: no tool find"),
        (call_with('{"name": "kai", "field": ["pet"]}'), "error: no field ['pet']"),
        (call("nobody", "pet"), UNKNOWN),
        (call("cat", "pet"), UNKNOWN),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_and_the_episode_goes_on(
    message: ChatMessage, text: str
) -> None:
    (result,) = LookupEnvironment(a_prompt(1)).react(message)
    assert result["content"] == text


@given(st.text(max_size=60))
def test_no_argument_text_can_break_an_episode(text: str) -> None:
    environment = LookupEnvironment(a_prompt(2))
    assert environment.react(call_with(text))[0]["role"] == "tool"
    assert 0.0 <= environment.reward <= 1.0


def test_no_training_question_is_about_a_held_out_person_or_seen_directory() -> None:
    """Otherwise held-out success could be remembered instead of found."""
    splits = ("train", "held_out")
    split = {name: [question_of(prompt) for prompt in prompts(name, 0, {})] for name in splits}
    assert {question.subject for question in split["train"]} <= set(TRAINING_SUBJECTS)
    assert {question.subject for question in split["held_out"]} == set(HELD_OUT_SUBJECTS)
    assert not set(TRAINING_SUBJECTS) & set(HELD_OUT_SUBJECTS)
    seeds = [question.directory_seed for questions in split.values() for question in questions]
    assert len(set(seeds)) == len(seeds)


def test_held_out_questions_are_the_same_for_every_seed_and_training_ones_are_not() -> None:
    assert list(prompts("held_out", 1, {})) == list(prompts("held_out", 2, {}))
    assert list(prompts("train", 1, {})) == list(prompts("train", 1, {}))
    assert list(prompts("train", 1, {"train": 9})) != list(prompts("train", 2, {"train": 9}))


def test_each_number_of_hops_has_an_equal_share() -> None:
    hops = [prompt.metadata["hops"] for prompt in prompts("held_out", 0, {"held_out": 30})]
    assert [hops.count(number) for number in (1, 2, 3)] == [10, 10, 10]


def test_a_prompt_survives_the_journey_to_another_process() -> None:
    """Metadata travel as plain values; the environment is built from them at the other end."""
    prompt = a_prompt(3)
    there = msgspec_json.decode(msgspec_json.encode(prompt), type=Prompt)
    assert question_of(there) == question_of(prompt)


def test_a_split_that_does_not_exist_is_refused() -> None:
    for source in (prompts, demonstrations):
        with pytest.raises(ValueError, match="split 'test' does not exist: use train or held_out"):
            source("test", 0, {})
    with pytest.raises(ValidationError, match="smrt"):
        demonstrations("train", 0, {"smrt": 1.0})


def test_no_value_of_the_task_is_cut_by_a_word_of_its_own_text() -> None:
    """A name inside another word of the conversation would be cut out of it as a token."""
    words = ("What", "is", "the", "of", "lookup", "name", "arguments", "assistant", "user", "error")
    assert not [(value, word) for value in VALUES for word in words if value in word]
    assert len(set(VALUES)) == len(VALUES)


def test_a_directory_links_people_to_others_and_states_facts_about_each() -> None:
    directory = Directory(11)
    for name in PEOPLE:
        assert all(directory.lookup(name, link) in set(PEOPLE) - {name} for link in LINKS)
        assert all(directory.lookup(name, field) in values for field, values in FACTS.items())


def success(prompt: Prompt, messages: list[ChatMessage]) -> bool:
    environment = LookupEnvironment(prompt)
    for message in messages:
        if message["role"] == "assistant":
            environment.react(message)
    return environment.solved


def test_a_perfect_clerk_solves_every_question() -> None:
    """The path to the answer exists in the demonstrations' own terms."""
    clerk = Clerk(smart=1.0, early=0.0, late=0.0)
    for seed in range(20):
        prompt = a_prompt(1 + seed % 3, seed)
        assert success(prompt, converse(clerk, question_of(prompt), Random(seed)))


def test_the_careless_clerk_solves_few_and_only_ever_copies_what_it_was_told() -> None:
    """The figure in the recipe's comment, and why copying is what the model learns from it."""
    solved = 0
    for prompt in islice(demonstrations("train", 0, {}), 600):
        solved += success(prompt, prompt.messages)
        last: Any = prompt.metadata["subject"]
        for message in prompt.messages[1:]:
            if message["role"] == "tool":
                last = message["content"]
            elif message.get("tool_calls"):
                arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
                assert arguments["name"] == last
                assert arguments["field"] in FIELDS
            else:
                assert message["content"] == last
        assert prompt.messages[-1]["role"] == "assistant"
    assert 0.07 < solved / 600 < 0.15
