"""gpt-oss: what stands before and between messages is said, unless it is a message's header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.session.families import ParsedReply
from milepost.actors.session.families.calls import CallContext
from milepost.actors.session.families.harmony import HarmonyParser

FINAL = "<|channel|>final<|message|>x"
NEXT = f"<|start|>assistant{FINAL}"
THOUGHT = "<|channel|>analysis<|message|>hm<|end|>"
CALL = '<|channel|>commentary json<|message|>{"a": 1}'


def read(pieces: list[str], *, has_tools: bool = True) -> ParsedReply:
    """The reply, and proof that the deltas add up to it."""
    tools = [{"function": {"name": "f"}}] if has_tools else []
    reader = HarmonyParser(CallContext(0, tools))
    deltas = [delta for text in pieces for delta in reader.feed(text)] + reader.finish()
    reply = reader.reply()
    assert "".join(delta.content for delta in deltas) == reply.content
    assert "".join(delta.reasoning for delta in deltas) == reply.reasoning
    assert tuple(call for delta in deltas for call in delta.tool_calls) == reply.tool_calls
    return reply


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        (FINAL, "x", "", []),
        (THOUGHT + NEXT, "x", "hm", []),
        (f"{THOUGHT}Hello there{NEXT}", "Hello therex", "hm", []),
        (f"Hello there{NEXT}", "Hello therex", "", []),
        (f"Hello there{FINAL}", "Hello therex", "", []),
        ("Hello there<|message|>x", "Hello therex", "", []),
        (f"{THOUGHT}Hello{FINAL}", "Hellox", "hm", []),
        (f"{FINAL}<|end|>y<|end|>z{NEXT}", "xy<|end|>zx", "", []),
        (f"a < b <|sta{NEXT}", "a < b <|stax", "", []),
        # Blank text between messages belongs to the format, at the end it is what was said.
        (f"{THOUGHT}\n{NEXT}", "x", "hm", []),
        (f"{FINAL}<|end|>\n", "x\n", "", []),
        # A header may begin with its recipient: the prompt wrote what stands before it.
        (f" to=functions.f{CALL}", "", "", ["f"]),
        (f"{THOUGHT} to=functions.f{CALL}", "", "hm", ["f"]),
        (f"{THOUGHT}<|start|>assistant to=functions.f{CALL}", "", "hm", ["f"]),
        (' to=functions.f json<|message|>{"a": 1}', "", "", ["f"]),
        (f"Hello to=functions.f{FINAL}", "Hello to=functions.fx", "", []),
        (f" to=functions.f and so on{FINAL}", " to=functions.f and so onx", "", []),
        (" to=functions.f", " to=functions.f", "", []),
        # A header that is given up stays as it was written, and names nothing of the next message.
        (f"<|channel|>analysis{NEXT}", "<|channel|>analysisx", "", []),
        (f"<|channel|>analysis<|end|>Hello{NEXT}", "<|channel|>analysis<|end|>Hellox", "", []),
        (
            f"<|channel|>commentary to=functions.f{NEXT}",
            "<|channel|>commentary to=functions.fx",
            "",
            [],
        ),
        ("<|channel|>final", "<|channel|>final", "", []),
    ],
)
def test_no_text_between_messages_is_lost(
    text: str, content: str, reasoning: str, calls: list[str]
) -> None:
    """It is sampled and trained: an agent that cannot see it answers something else."""
    reply = read([text])
    assert (reply.content, reply.reasoning) == (content, reasoning)
    assert [call.name for call in reply.tool_calls] == calls
    assert read(list(text)) == reply
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]]) == reply


WORDS = [
    "<|start|>", "<|start|>assistant", "<|channel|>", "analysis", "<|message|>", "<|end|>",
    "<|constrain|>", "to=", "functions.f", " to=functions.f", " json", " ", "\n", "<", "<|",
    "Hello", '{"a":1}', "t", "to", "=",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join), st.booleans())
def test_every_cut_reads_the_same(text: str, has_tools: bool) -> None:  # noqa: FBT001
    """Text is given out as soon as it cannot be the beginning of a header any more."""
    whole = read([text], has_tools=has_tools)
    assert read(list(text), has_tools=has_tools) == whole
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]], has_tools=has_tools) == whole


def test_what_cannot_be_a_header_is_streamed_at_once() -> None:
    """A client that reads along waits for no control token."""
    reader = HarmonyParser(CallContext(0, []))
    assert [delta.content for delta in reader.feed("Hello the")] == ["Hello the"]
    assert [delta.content for delta in reader.feed("re <|")] == ["re "]
    assert [delta.content for delta in reader.feed("no")] == ["<|no"]
