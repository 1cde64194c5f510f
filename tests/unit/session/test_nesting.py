"""A degenerate reply opens one bracket after another; no reader of JSON may fall over it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.session.family_kit import family_renderer
from unit.session.kit import LOOKUP

from milepost.actors.session.families.calls import is_object, parse_json_call
from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.nesting import NESTING_MAX, is_deep

BRACKETS = "[" * 50_000


def slow_depth(text: str) -> int:
    """Of a valid JSON text, by reading it."""

    def depth(value: object) -> int:
        inside = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(map(depth, inside), default=0) if isinstance(inside, list) else 0

    return depth(msgspec.json.decode(text))


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.text('[]{}"\\a', max_size=4),
        lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=2), inside),
    ),
    st.integers(0, NESTING_MAX + 3),
)
def test_depth_is_counted_outside_of_texts(value: object, levels: int) -> None:
    """Brackets in a text are words of somebody; those around it are structure."""
    text = "[" * levels + msgspec.json.encode(value).decode() + "]" * levels
    assert is_deep(text) == (slow_depth(text) > NESTING_MAX)


@pytest.mark.parametrize("name", sorted(DECLARATIONS))
@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>\n{"name": "lookup", "arguments": {"a": %s}}\n</tool_call>',
        "<tool_call>lookup<arg_key>a</arg_key><arg_value>%s</arg_value></tool_call>",
        "<tool_call><function=lookup><parameter=a>%s</parameter></function></tool_call>",
        '{"name": "lookup", "parameters": {"a": %s}}',
        (
            '<minimax:tool_call><invoke name="lookup"><parameter name="a">%s</parameter></invoke>'
            "</minimax:tool_call>"
        ),
        '<|channel|>commentary to=functions.lookup<|message|>{"a": %s}<|call|>',
    ],
)
def test_a_reply_of_brackets_is_read_as_it_was_sampled(name: str, said: str) -> None:
    """Whole and in pieces alike, and whatever it becomes can be read by every client."""
    text = said % BRACKETS
    family = family_renderer(name).family
    whole = family.reply_parser("", turn=0, tools=[LOOKUP])
    whole.feed(text)
    whole.finish()
    pieces = family.reply_parser("", turn=0, tools=[LOOKUP])
    for start in range(0, len(text), 9_999):
        pieces.feed(text[start : start + 9_999])
    pieces.finish()
    assert whole.reply() == pieces.reply()
    for call in whole.reply().tool_calls:
        assert is_object(call.arguments)


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1e999}', '{"a": "\\ud800"}', '{"a": "\n"}', '{"a": 01}', f'{{"a": {BRACKETS}}}', "[]"],
)
def test_arguments_that_are_no_json_object_make_no_call(arguments: str) -> None:
    """A client would fail on them after the turn is committed: they stay text, as sampled."""
    assert parse_json_call(f'{{"name": "f", "arguments": {arguments}}}', "c") is None
