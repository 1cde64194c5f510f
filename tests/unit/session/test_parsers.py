"""Replies are read the same, whole or streamed, wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.session.families import ParsedReply, ReplyParser
from milepost.actors.session.families.calls import CallContext, json_call, parse_json_call
from milepost.actors.session.families.declared import bare_json, harmony, markup
from milepost.actors.session.families.markup import MarkupParser


def parser(*, thinking: bool = False, calls: bool = True) -> MarkupParser:
    """A parser whose calls are numbered."""
    context = CallContext(turn=0, tools=[])
    return MarkupParser(
        lambda body, index: json_call(body, index, context), thinking=thinking, calls=calls
    )


def read(pieces: list[str], *, thinking: bool = False, calls: bool = True) -> ParsedReply:
    """The reply, and proof that the deltas add up to it."""
    reader = parser(thinking=thinking, calls=calls)
    deltas = [delta for text in pieces for delta in reader.feed(text)] + reader.finish()
    reply = reader.reply()
    assert "".join(delta.content for delta in deltas) == reply.content
    assert "".join(delta.reasoning for delta in deltas) == reply.reasoning
    assert tuple(call for delta in deltas for call in delta.tool_calls) == reply.tool_calls
    return reply


def simple(text: str, **options: bool) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and (name, arguments) of each call."""
    reply = read([text], **options)
    return reply.content, reply.reasoning, [(c.name, c.arguments) for c in reply.tool_calls]


LOOKUP = '<tool_call>\n{"name": "lookup", "arguments": {"a": 1}}\n</tool_call>'
CALLED = ("lookup", '{"a": 1}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", "", [])),
        ("kai", ("kai", "", [])),
        ("  kai\n", ("  kai\n", "", [])),
        ("a < b <tool", ("a < b <tool", "", [])),
        (LOOKUP, ("", "", [CALLED])),
        (f"I look.\n{LOOKUP}", ("I look.", "", [CALLED])),
        (f"{LOOKUP}\n{LOOKUP}\n", ("", "", [CALLED, CALLED])),
        (f"{LOOKUP} \n {LOOKUP} \n ", ("", "", [CALLED, CALLED])),
        (f"{LOOKUP} then {LOOKUP}", (" then ", "", [CALLED, CALLED])),
        ("<think>\nhm\n</think>\n\nkai", ("kai", "hm", [])),
        (f"<think>\nhm\n</think>\n\n{LOOKUP}", ("", "hm", [CALLED])),
        ("\n<think>a\n\nb</think>c", ("c", "a\n\nb", [])),
        ("<think>never closed\n", ("", "never closed", [])),
        ("<think>\n\n</think>\n\nkai", ("kai", "", [])),
        ("well <think>no</think>", ("well <think>no</think>", "", [])),
        (f"<think>{LOOKUP}</think>kai", ("kai", LOOKUP, [])),
        ("<tool_call>\n{}\n</tool_call>", ("<tool_call>\n{}\n</tool_call>", "", [])),
        ("x\n<tool_call>{</tool_call>y", ("x\n<tool_call>{</tool_call>y", "", [])),
        (f"x\n{LOOKUP[:-3]}", (f"x\n{LOOKUP[:-3]}", "", [])),
        (f"<tool_call>{LOOKUP}", (f"<tool_call>{LOOKUP}", "", [])),
    ],
)
def test_a_reply_is_read_by_the_rules(text: str, expected: tuple[str, str, list[object]]) -> None:
    """What is malformed stays visible as it was written, so an agent can react to it."""
    assert simple(text) == expected


def test_reasoning_that_the_prompt_opened_needs_no_opening_tag() -> None:
    """A prompt may end with the opening tag; the reply then starts inside the block."""
    assert simple("\nhm\n</think>\n\nkai", thinking=True) == ("kai", "hm", [])
    assert simple("cut off", thinking=True) == ("", "cut off", [])


def test_without_tools_a_call_is_text() -> None:
    """Nobody offered tools, so nothing is a call."""
    assert simple(f"see\n{LOOKUP}", calls=False) == (f"see\n{LOOKUP}", "", [])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f", "arguments": {"b":1,  "a": 1e3}}', '{"b":1,  "a": 1e3}'),
        ('{"name": "f", "arguments": {"a": "\\u00e9"}}', '{"a": "\\u00e9"}'),
        ('{"arguments": {"x": {"y": []}}, "name": "f"}', '{"x": {"y": []}}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": "text"}', None),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": 1, "arguments": {}}', None),
        ('{"name": "", "arguments": {}}', None),
        ('{"name": "f", "arguments": {"a": }}', None),
        ("f(a=1)", None),
        ("", None),
    ],
)
def test_arguments_stay_the_text_that_was_sampled(body: str, arguments: str | None) -> None:
    """Spacing, key order, escapes and number formats are the policy's own."""
    call = parse_json_call(body, "c0")
    assert (call.arguments if call else None) == arguments


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", LOOKUP, LOOKUP, "\n", "\n\n", " ",
    "<", ">", "</", "<tool", "_call>", "<thi", "nk>", "kai", "a < b", "{", "\u00e9",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=9).map("".join)


@given(texts, st.booleans(), st.booleans())
def test_every_cut_in_two_reads_the_same(text: str, thinking: bool, calls: bool) -> None:  # noqa: FBT001
    """All cuts of one text, also inside a tag: streaming parsers of others lose calls there."""
    whole = read([text], thinking=thinking, calls=calls)
    for cut in range(len(text) + 1):
        assert read([text[:cut], text[cut:]], thinking=thinking, calls=calls) == whole


@given(texts, st.data())
def test_every_cut_in_many_reads_the_same(text: str, data: st.DataObject) -> None:
    """One character at a time, and anything between."""
    whole = read([text])
    assert read(list(text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == whole


MAKERS: dict[str, Callable[[CallContext], ReplyParser]] = {
    "markup": lambda context: markup(json_call)(context, False),  # noqa: FBT003
    "thinking": lambda context: markup(json_call)(context, True),  # noqa: FBT003
    "bare_json": lambda context: bare_json(context, False),  # noqa: FBT003
    "harmony": lambda context: harmony(context, False),  # noqa: FBT003
}
MORE = [
    *FRAGMENTS, "<|channel|>", "analysis", "<|message|>", "<|end|>", "<|call|>", "<|start|>",
    "to=functions.f", '{"a":1}', ";", '{"name":"f","parameters":{}}', "<|python_tag|>",
]  # fmt: skip


@pytest.mark.parametrize("kind", MAKERS)
@given(text=st.lists(st.sampled_from(MORE), max_size=9).map("".join), has_tools=st.booleans())
def test_a_whole_reply_reads_as_a_streamed_one(
    kind: str,
    text: str,
    has_tools: bool,  # noqa: FBT001
) -> None:
    """A stream is compared with the whole at its end, and refused where they differ."""
    context = CallContext(0, [{"function": {"name": "f"}}] if has_tools else [])
    streamed = MAKERS[kind](context)
    streamed.feed(text)
    streamed.finish()
    assert MAKERS[kind](context).read(text) == streamed.reply()


@given(texts)
def test_nothing_a_reply_says_is_lost(text: str) -> None:
    """Without calls and reasoning, the content is the reply itself."""
    reply = read([text])
    if not reply.tool_calls and "<think>" not in text:
        assert reply.content == text
