"""Seams between turns: the registered vectors of each family."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, models
from unit.session.kit import LOOKUP, renderer

from milepost.actors.session.families import Seam, UnknownFamily, make_family
from milepost.actors.session.text.tokenizer import Tokenizer


def tokenizer(*special: str, eos: str | None = None, plain: tuple[str, ...] = ("a", "\n")) -> Any:
    """A tokenizer of single characters and these special tokens."""
    words = {word: index for index, word in enumerate(plain)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=words, merges=[]))
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    named = {} if eos is None else {"eos_token": eos}
    return Tokenizer(backend, content_hash="h", named_tokens=named)


def test_qwen3_repairs_the_newline_after_the_end_of_a_turn() -> None:
    """The template writes it, the model stops before it; any other end is left alone."""
    tools = tokenizer("<|im_start|>", "<|im_end|>")
    family = make_family("qwen3", tools)
    end, newline = tools.token_id("<|im_end|>"), tools.token_id("\n")
    assert family.seam(end) == Seam(insert=(newline,))
    assert family.seam(0) == Seam()
    assert family.seam(None) == Seam()
    assert family.trim_max == 0


def test_default_repairs_nothing() -> None:
    """It knows no seam, and says that it is best effort."""
    tools = tokenizer("</s>", eos="</s>")
    family = make_family("default", tools)
    assert family.seam(tools.token_id("</s>")) == Seam()
    assert not family.verified
    assert family.stop_token_ids == (tools.token_id("</s>"),)


def test_stop_tokens_are_the_family_s_not_just_the_tokenizer_s_end_of_sequence() -> None:
    """A filter that asks for eos_token_id only calls every reply of this model overlong."""
    tools = tokenizer("<|endoftext|>", "<|im_start|>", "<|im_end|>", eos="<|endoftext|>")
    stops = {tools.token_id("<|im_end|>"), tools.token_id("<|endoftext|>")}
    assert set(make_family("qwen3", tools).stop_token_ids) == stops


def test_the_default_base_carries_the_calls_of_the_last_reply() -> None:
    """Templates look at the call a result answers; the base is system, user, assistant."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    family = make_family("default", tokenizer("</s>", eos="</s>"))
    base = family.delta_base([call])
    assert [message["role"] for message in base] == ["system", "user", "assistant"]
    assert base[-1]["tool_calls"] == [call]
    assert "tool_calls" not in family.delta_base([])[-1]


@pytest.mark.parametrize(
    ("name", "tools", "told"),
    [
        ("qwen33", tokenizer("<|im_end|>"), "unknown family 'qwen33'.*did you mean 'qwen3'"),
        ("qwen3", tokenizer("</s>"), "needs the special token <|im_start|>"),
        (
            "qwen3",
            tokenizer("<|im_start|>", "<|im_end|>", plain=("a",)),
            "needs one token for a newline",
        ),
        ("default", tokenizer(), "eos_token.*does not name"),
        ("default", tokenizer(eos="</s>"), "names as '</s>', no token"),
    ],
)
def test_a_family_that_does_not_fit_is_refused_by_name(name: str, tools: Any, told: str) -> None:
    """At start-up, with what is missing; a wrong seam later would be silent."""
    with pytest.raises(UnknownFamily, match=told.replace("|", r"\|")):
        make_family(name, tools)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("<|im_start|>assistant\n", ("hm</think>kai", "")),
        ("<|im_start|>assistant\n<think>\n", ("kai", "hm")),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ("hm</think>kai", "")),
    ],
)
def test_the_prompt_s_end_says_whether_reasoning_is_open(
    tail: str, expected: tuple[str, str]
) -> None:
    """A thinking template opens the block itself, and the reply only closes it."""
    reader = renderer().family.reply_parser(tail, turn=0, tools=[])
    reader.feed("hm</think>kai")
    reader.finish()
    assert (reader.reply().content, reader.reply().reasoning) == expected


def test_calls_of_a_conversation_never_share_an_id() -> None:
    """A tool result names its call by id."""
    said = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    seen = []
    for turn in range(3):
        reader = renderer().family.reply_parser("", turn=turn, tools=[LOOKUP])
        reader.feed(said)
        reader.finish()
        seen += [call.call_id for call in reader.reply().tool_calls]
    assert len(seen) == len(set(seen)) == 6
