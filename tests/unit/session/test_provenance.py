"""Which text came from whom: a record for people, so it must not tell them stories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from unit.session.family_kit import family_renderer
from unit.session.kit import LOOKUP, QUESTION, renderer, tool_result

from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.provenance import find_contents
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import ChatTemplate
from milepost.messages.trajectory import Provenance

NAMES = sorted(DECLARATIONS)
INPUT, TOOL = Provenance.INPUT, Provenance.TOOL
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "lookup", "arguments": '{"name": "yes"}'},
}


def kinds(messages: list[dict[str, Any]]) -> dict[str, set[int]]:
    """Text of each kind of token in a first prompt."""
    rendering = renderer()
    piece = rendering.render(rendering.first(messages, (LOOKUP,)))
    found: dict[str, set[int]] = {}
    for token, kind in zip(piece.token_ids.tolist(), piece.provenance.tolist(), strict=True):
        found.setdefault(rendering.tokenizer.decode([token]), set()).add(kind)
    return found


def test_every_prompt_token_says_what_it_stands_for() -> None:
    """A person who looks at a row sees which text came from whom."""
    found = kinds([QUESTION, {"role": "assistant", "content": "bob"}, tool_result("mia")])
    assert found["kai"] == {INPUT}
    assert found["mia"] == {TOOL}
    assert found["<|im_start|>"] == found["<tool_response>"] == {Provenance.TEMPLATE}
    assert Provenance.SAMPLED not in set().union(*found.values())


def runs(rendering: Renderer, name: bytes) -> list[tuple[str, Provenance]]:
    """What is not the template's, in order, each run of one kind as text."""
    piece = rendering.render(name)
    found: list[tuple[list[int], int]] = []
    last = int(Provenance.TEMPLATE)
    for token, kind in zip(piece.token_ids.tolist(), piece.provenance.tolist(), strict=True):
        if kind not in {last, Provenance.TEMPLATE}:
            found.append(([], kind))
        if kind != Provenance.TEMPLATE:
            found[-1][0].append(token)
        last = kind
    return [(rendering.tokenizer.decode(ids), Provenance(kind)) for ids, kind in found]


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_a_word_of_the_template_is_found_where_it_was_said(family: str, role: str) -> None:
    """Tools are described before anybody speaks, in words that users and tools say, too.

    Each word must stand where a text of as many letters stands that cannot be mistaken.
    """
    rendering = family_renderer(family)

    def said(text: str) -> bytes:
        if role == "user":
            return rendering.first([{"role": "user", "content": text}], (LOOKUP,))
        return rendering.delta([tool_result(text), tool_result("12", "c2")], [CALL], (LOOKUP,))

    words = sorted(set(re.findall("[a-z_]+", rendering.text(said("x")))))
    assert len(words) > 3
    for word in words[:: len(words) // 8 + 1]:
        ours, other = rendering.render(said(word)), rendering.render(said("@" * len(word)))
        assert ours.provenance.tolist() == other.provenance.tolist(), word
        assert runs(rendering, said(word))[0] == (word, INPUT if role == "user" else TOOL)


@pytest.mark.parametrize("family", NAMES)
def test_an_argument_is_not_the_result_that_says_the_same(family: str) -> None:
    """Of a conversation that a client brings, each message keeps its own words."""
    rendering = family_renderer(family)
    asked = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [QUESTION, asked, {**tool_result("yes", "c"), "name": "lookup"}, said_by_user("yes")]
    heard = runs(rendering, rendering.first(messages, (LOOKUP,)))
    assert heard == [(QUESTION["content"], INPUT), ("yes", TOOL), ("yes", INPUT)]


def said_by_user(text: str) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": text}


def of(source: str) -> Renderer:
    """Family qwen3 under another template."""
    known = renderer()
    return Renderer(known.tokenizer, ChatTemplate({"default": source}), known.family)


def heard(source: str, *messages: dict[str, Any]) -> list[str]:
    """What was found of these messages."""
    rendering = of("{% for m in messages %}" + source + "{% endfor %}")
    return [text for text, _kind in runs(rendering, rendering.first(messages, ()))]


def test_what_a_template_rewrites_is_found_as_far_as_it_is_there() -> None:
    """Spelled as JSON, said twice, or with its beginning or its end taken off."""
    twice = said_by_user('a "user"\nuser')
    assert heard("<user:{{ m.content | tojson }}>", twice) == ['a \\"user\\"\\nuser']
    assert heard("<user:{{ m.content }}|{{ m.content }}>", said_by_user("user")) == ["user"] * 2
    thought = said_by_user("<think>\nhm\n</think>\n\n<user>")
    assert heard("\n<user>:{{ m.content.split('</think>')[-1] | trim }}", thought) == ["<user>"]
    assert heard("user:{{ m.content.split(' ')[0] }} er", said_by_user("user yes")) == ["user"]


def test_what_a_template_leaves_out_is_no_word_of_its_own() -> None:
    """Nor of another message: it is nowhere."""
    source = "{{ m.role }}:{% if m.role == 'user' %}{{ m.content }}{% endif %}|"
    reply = {"role": "assistant", "content": "tool"}
    assert heard(source, said_by_user("the tool"), reply, tool_result("tool")) == ["the tool"]
    assert heard(source, said_by_user("a"), {**reply, "content": "assist"}) == ["a"]


@pytest.mark.parametrize(
    "source",
    [
        "user:{{ m.content }}{{ m.content | length }}",
        "user:{{ m.content }}{{ raise_exception('x') if m.content not in ['user', 'no'] }}",
        "user\U000f0001:{{ m.content }}",
    ],
)
def test_a_template_that_is_led_astray_by_marks_is_not_believed(source: str) -> None:
    """Then a word that stands in two places is the template's; one that stands in one is found."""
    assert heard(source, said_by_user("user")) == []
    assert heard(source, said_by_user("no")) == ["no"]


def test_an_imported_conversation_tells_the_same() -> None:
    """Its rows are looked at like any other."""
    messages = [said_by_user("name"), {"role": "assistant", "content": "name"}, said_by_user("x")]
    row = conversation_row(renderer(), [*messages, messages[1]], [LOOKUP])
    at = [place for place, kind in enumerate(row.provenance.tolist()) if kind == INPUT]
    assert renderer().tokenizer.decode(row.token_ids[at].tolist()) == "namex"
    assert max(at[:-1]) < row.turns[0][0] < at[-1]


def test_a_user_who_says_user_is_found_behind_the_role() -> None:
    """The role's name comes first in the text, and is the template's."""
    written = "<|im_start|>user\nuser<|im_end|>\n<|im_start|>assistant\n"

    def render(messages: Sequence[dict[str, Any]]) -> str:
        return written.replace("\nuser", f"\n{messages[0]['content']}")

    assert find_contents(written, [said_by_user("user")], render) == [(17, 21, INPUT)]
    assert find_contents(written, [said_by_user("gone")], lambda _messages: written) == []
