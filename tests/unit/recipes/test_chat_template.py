"""The template must only ever append: the session actor keeps tokens and renders what is new."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from milepost.configs.recipes.hunt import clerk as hunt_clerk
from milepost.configs.recipes.lookup import clerk as lookup_clerk
from milepost.configs.recipes.lookup.directory import TOOLS
from milepost.configs.recipes.tiny.tokenizer import render
from milepost.messages.shared import ChatMessage, Prompt

QUESTION: ChatMessage = {"role": "user", "content": "What is the pet of kai?"}


def call(name: str, arguments: Any, content: str = "") -> ChatMessage:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def text_of(*messages: ChatMessage, tools: bool = False, generate: bool = False) -> str:
    prompt = Prompt(prompt_id="p", messages=list(messages), tools=TOOLS if tools else [])
    return render(prompt, generate=generate)


@pytest.mark.parametrize("demonstrations", [lookup_clerk.demonstrations, hunt_clerk.demonstrations])
def test_every_longer_history_only_appends(demonstrations: Any) -> None:
    """At each point where the model speaks, what it saw is a prefix of the whole conversation."""
    for prompt in islice(demonstrations("train", 5, {}), 20):
        whole = render(prompt)
        for end, message in enumerate(prompt.messages):
            if message["role"] == "assistant":
                before = Prompt(prompt_id="p", messages=prompt.messages[:end], tools=prompt.tools)
                assert whole.startswith(render(before, generate=True))


def test_what_is_new_is_the_same_text_behind_any_history() -> None:
    """The session actor renders new messages behind a dummy history and cuts that off."""
    result: ChatMessage = {"role": "tool", "tool_call_id": "1", "content": "cat"}
    spoken = call("lookup", '{"name": "kai", "field": "pet"}')
    long = (QUESTION, spoken, {"role": "tool", "tool_call_id": "1", "content": "dog"}, spoken)
    short = ({"role": "user", "content": "dummy"}, spoken)
    deltas = {
        text_of(*history, result, tools=tools, generate=True).removeprefix(
            text_of(*history, tools=tools)
        )
        for history in (long, short)
        for tools in (True, False)
    }
    (delta,) = deltas
    assert delta == (
        "<|im_start|>user\n<tool_response>\ncat\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_several_results_of_one_turn_share_one_message() -> None:
    results = ({"role": "tool", "content": value} for value in ("cat", "dog"))
    assert text_of(*results) == (
        "<|im_start|>user\n<tool_response>\ncat\n</tool_response>"
        "\n<tool_response>\ndog\n</tool_response><|im_end|>\n"
    )


def test_tools_are_listed_in_one_line_each_behind_the_system_text() -> None:
    system: ChatMessage = {"role": "system", "content": "Be brief."}
    assert text_of(system, QUESTION, tools=True).startswith(
        "<|im_start|>system\nBe brief.\nlookup(name, field)<|im_end|>\n<|im_start|>user\nWhat"
    )


def test_arguments_stand_as_they_were_sampled_and_objects_are_written_as_json() -> None:
    """A call that is written again in another way would not be the tokens the model sampled."""
    sampled = '{"field":"pet",  "name":"kai"}'
    assert f'"arguments": {sampled}}}\n</tool_call>' in text_of(call("lookup", sampled))
    assert '"arguments": {"name": "kai"}}\n' in text_of(call("lookup", {"name": "kai"}))


def test_text_before_a_call_is_kept_apart_from_it() -> None:
    assert 'assistant\nSo.\n<tool_call>\n{"name": "dig"' in text_of(call("dig", {}, "So."))


def test_a_system_message_in_the_middle_is_not_lost() -> None:
    assert "system\nStop.<|im_end|>" in text_of(QUESTION, {"role": "system", "content": "Stop."})


def test_the_reference_library_renders_and_tokenizes_the_same(checkpoint: Path) -> None:
    """Anybody may load the folder with transformers: it must show the same tokens to the model."""
    reference = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    source = {"lookup": lookup_clerk, "hunt": hunt_clerk}[checkpoint.name]
    for prompt in islice(source.demonstrations("held_out", 1, {}), 10):
        for end in range(1, len(prompt.messages) + 1):
            part = Prompt(prompt_id="p", messages=prompt.messages[:end], tools=prompt.tools)
            ids = reference.apply_chat_template(
                part.messages, tools=[*part.tools], add_generation_prompt=True, return_dict=False
            )
            assert ids == tokenizer.encode(render(part, generate=True)).ids
