"""What stands between the tags of a call is found in one walk, however many calls are opened."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.session.families.calls import (
    ARGUMENT,
    DSML,
    INVOKE,
    KIMI,
    NAMED,
    PARAMETER,
    CallContext,
    Tags,
    pieces,
)
from milepost.actors.session.families.table import DECLARATIONS

TOOLS = [{"type": "function", "function": {"name": "f"}}]
VALUE_OPENS = '<｜DSML｜parameter name="a" string="true">'
FORMS: dict[str, tuple[Tags, str, list[str]]] = {
    "argument": (
        ARGUMENT,
        r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>",
        ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    ),
    "parameter": (
        PARAMETER,
        r"<parameter=([^>\n]+)>(.*?)</parameter>",
        ["<parameter=a>", "<parameter=", "</parameter>"],
    ),
    "invoke": (
        INVOKE,
        r'<(?:｜DSML｜)?invoke name="([^"]*)">(.*?)</(?:｜DSML｜)?invoke>',
        ['<invoke name="f">', '<｜DSML｜invoke name="f">', "</invoke>", "</｜DSML｜invoke>"],
    ),
    "named": (
        NAMED,
        r'<parameter name="([^"]*)">(.*?)</parameter>',
        ['<parameter name="a">', '<parameter name="', "</parameter>"],
    ),
    "dsml": (
        DSML,
        r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>',
        [VALUE_OPENS, VALUE_OPENS.replace("true", "false"), "</｜DSML｜parameter>"],
    ),
    "kimi": (
        KIMI,
        r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
        ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    ),
}
"""Of each form its tags, all of a piece as one pattern, and markup to write it with."""


def whole_pieces(pattern: str, text: str) -> list[Any] | None:
    """What a form means: all matches of one pattern, with only white space between them."""
    if re.sub(pattern, "", text, flags=re.DOTALL).strip():
        return None
    return re.findall(pattern, text, flags=re.DOTALL)


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_tag_by_tag_is_read_what_one_pattern_for_all_of_it_reads(
    name: str, data: st.DataObject
) -> None:
    """Well formed, or with tags that are missing, doubled, or stand inside a value."""
    tags, pattern, markup = FORMS[name]
    word = st.sampled_from([*markup, "a", '"', ">", "<", " ", "\n", "\u2003", "\x1c", "{}"])
    written = st.lists(word, max_size=3).map("".join)
    closed = st.tuples(*(st.just(tag) | written for tag in markup for _ in (0, 1))).map("".join)
    orderly = [_piece(name, text) for text in ("a", "", "\n{} ")]
    text = data.draw(
        st.one_of(
            st.lists(word, max_size=12).map("".join),
            st.lists(closed, max_size=3).map("".join),
            st.lists(st.sampled_from([*orderly, " ", "\n"]), max_size=6).map("".join),
        )
    )
    assert pieces(tags, text) == whole_pieces(pattern, text)


class Walked:
    """A tag that notes how many characters are looked at to find it."""

    def __init__(self, tag: re.Pattern[str], steps: list[int]) -> None:
        self._tag = tag
        self._steps = steps

    def match(self, text: str, at: int) -> re.Match[str] | None:
        return self._noted(self._tag.match(text, at), text, at)

    def search(self, text: str, at: int) -> re.Match[str] | None:
        return self._noted(self._tag.search(text, at), text, at)

    def _noted(self, match: re.Match[str] | None, text: str, at: int) -> re.Match[str] | None:
        self._steps.append((match.end() if match else len(text)) - at)
        return match


@pytest.mark.parametrize("name", FORMS)
def test_no_character_is_looked_at_more_than_twice(name: str) -> None:
    """Calls that are opened and never closed are passed over once, not once for each of them."""
    tags, _, _ = FORMS[name]
    whole = _piece(name, "1")
    for unclosed in (whole, whole[: whole.rindex("<")], whole[: whole.index("1")]):
        text, steps = unclosed * 100, list[int]()
        pieces(cast("Tags", tuple(Walked(tag, steps) for tag in tags)), text)
        assert 0 < sum(steps) <= 2 * len(text)


def _piece(name: str, text: str) -> str:
    """A well-formed one."""
    return {
        "argument": f"<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>",
        "parameter": f"<parameter=a>{text}</parameter>",
        "invoke": f'<invoke name="f">{text}</invoke>',
        "named": f'<parameter name="a">{text}</parameter>',
        "dsml": f"{VALUE_OPENS}{text}</｜DSML｜parameter>",
        "kimi": (
            f"<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        ),
    }[name]


@pytest.mark.parametrize(
    ("family", "opens", "again", "closes"),
    [
        ("glm", "<tool_call>f", "<arg_key>a</arg_key><arg_value>1", "</tool_call>"),
        ("qwen3.5", "<tool_call><function=f>", "<parameter=a>1\n", "</function></tool_call>"),
        (
            "minimax_m2.5",
            "<minimax:tool_call>",
            '<invoke name="f"><parameter name="a">1',
            "</invoke></minimax:tool_call>",
        ),
        (
            "deepseek_v3.2",
            "<｜DSML｜function_calls>",
            '<｜DSML｜invoke name="f">',
            "</｜DSML｜function_calls>",
        ),
        (
            "kimi_k2.5",
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}",
            "<|tool_calls_section_end|>",
        ),
    ],
)
def test_a_reply_that_opens_calls_and_closes_none_stays_text(
    family: str, opens: str, again: str, closes: str
) -> None:
    """As long a reply as a policy may sample; read from each opening anew, it takes minutes."""
    text = opens + again * 100_000 + closes
    reply = DECLARATIONS[family].make_parser(CallContext(0, TOOLS), False).read(text)  # noqa: FBT003
    assert (reply.content, reply.tool_calls) == (text, ())
