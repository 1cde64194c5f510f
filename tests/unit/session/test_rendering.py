"""Deltas: a later turn renders its new messages alone, and nothing that was said before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from unit.session.kit import LOOKUP, QUESTION, renderer, tool_result

from milepost.actors.session.families import make_family
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import ChatTemplate, RenderFailed

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def of(source: str, family: str = "qwen3") -> Renderer:
    """The kit's tokenizer under another template."""
    tokenizer = renderer().tokenizer
    return Renderer(tokenizer, ChatTemplate({"default": source}), make_family(family, tokenizer))


def text(rendering: Renderer, name: bytes) -> str:
    """What a named text renders to."""
    return rendering.tokenizer.decode(rendering.render(name).token_ids.tolist())


def test_a_tool_result_and_a_user_are_one_delta_with_one_generation_prompt() -> None:
    """Both are rendered together: the seam between them is the template's business."""
    rendering = renderer()
    appended = [tool_result("cat"), {"role": "user", "content": "and of bob?"}]
    assert text(rendering, rendering.delta(appended, (), (LOOKUP,))) == (
        "<|im_start|>user\n<tool_response>\ncat\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nand of bob?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_parallel_tool_results_close_once() -> None:
    """Results of one reply stand in one message, whose end comes after the last of them."""
    rendering = renderer()
    appended = [tool_result("cat"), tool_result("dog", "call_0_1")]
    written = text(rendering, rendering.delta(appended, (), ()))
    assert written.count("<|im_end|>") == 1
    assert written.count("<|im_start|>assistant") == 1


def test_nothing_appended_still_asks_for_a_reply() -> None:
    """The same history sent again asks for another reply."""
    rendering = renderer()
    assert text(rendering, rendering.delta([], (), ())) == "<|im_start|>assistant\n"


def test_a_delta_does_not_depend_on_what_was_said_before() -> None:
    """For ChatML the base is constant, so its cost does not grow with the conversation."""
    rendering = renderer()
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert rendering.delta([tool_result("cat")], [call], (LOOKUP,)) == rendering.delta(
        [tool_result("cat")], (), ()
    )


def test_default_renders_the_calls_that_results_answer() -> None:
    """A template may print the called tool's name beside its result."""
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "<{{ messages[loop.index0 - 1].tool_calls[0].function.name }}>"
        "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    rendering = of(source, "default")
    call = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
    assert text(rendering, rendering.delta([tool_result("cat")], [call], ())) == "<lookup>cat\n>"


def test_a_template_that_rewrites_the_past_is_refused_by_name() -> None:
    """One that counts messages, say: no delta of it could be right, so none is made."""
    counting = of("{{ messages | length }}" + CHATML)
    name = counting.delta([QUESTION], (), ())
    with pytest.raises(RenderFailed, match=r"not append-only for \['user'\]: before them it wrote"):
        counting.render(name)
    with pytest.raises(RenderFailed, match="not append-only"):
        counting.check()


def test_a_good_template_passes_the_start_up_check() -> None:
    """Every role that may be appended is tried, before the first conversation."""
    of(CHATML).check()
    renderer().check()


def test_remembered_pieces_are_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group shares its prompt; a long run must not keep every prompt it ever saw."""
    rendering = of(CHATML)
    names = [rendering.first([{"role": "user", "content": str(n)}], ()) for n in range(3)]
    pieces = [rendering.render(name) for name in names]
    room = pieces[0].num_bytes + pieces[1].num_bytes
    monkeypatch.setattr("milepost.actors.session.text.rendering.REMEMBERED_BYTES_MAX", room)
    for name, made in zip(names[:2], pieces[:2], strict=True):
        rendering.remember(name, made)
    assert rendering.recall(names[0]) is pieces[0]
    rendering.remember(names[2], pieces[2])
    assert [rendering.recall(name) for name in names] == [pieces[0], None, pieces[2]]
    with pytest.raises(ValueError, match="read-only"):
        pieces[0].token_ids[0] = 1


def test_a_long_first_prompt_is_remembered_and_a_long_delta_is_not() -> None:
    """Members of a group share the one; the other never comes again, and would fill the memory."""
    rendering = of(CHATML)
    long: list[dict[str, Any]] = [{"role": "user", "content": "x " * 2000}]
    for name, stays in (
        (rendering.first(long, ()), True),
        (rendering.delta(long, (), ()), False),
        (rendering.delta(long[:1], (), ())[:600], True),
    ):
        piece = rendering.render(rendering.first([QUESTION], ()))
        rendering.remember(name, piece)
        rendering.remember(name, piece)
        assert (rendering.recall(name) is piece) == stays


@pytest.mark.parametrize("seed", range(20))
def test_places_of_tokens_are_those_of_their_starts(seed: int) -> None:
    """Two ways to the same answer: asking for two places costs nothing, listing 100,000 does."""
    generator = random.Random(seed)
    tokenizer = renderer().tokenizer
    words = ["kai", " pet", "🍎", "ü", "<|im_end|>", "\n", "日"]
    text = "".join(generator.choice(words) for _ in range(200))
    places = sorted(generator.sample(range(len(text) + 1), 20))
    token_ids, starts = tokenizer.encode_with_starts(text)
    again, tokens = tokenizer.encode_with_places(text, places)
    assert again.tolist() == token_ids.tolist()
    assert tokens == np.searchsorted(starts, places).tolist()


def test_long_texts_go_the_same_way_as_short_ones() -> None:
    """Batch calls let other threads run; they must not tokenize otherwise."""
    tokenizer = renderer().tokenizer
    text = "What is the pet of kai?<|im_end|>\n" * 200
    whole = tokenizer.encode(text).tolist()
    part = tokenizer.encode("What is the pet of kai?<|im_end|>\n").tolist()
    assert whole == part * 200
    assert tokenizer.decode(whole) == text
