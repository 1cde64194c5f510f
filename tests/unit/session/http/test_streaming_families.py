"""In every family a stream of tokens, cut anywhere, reads as the whole reply does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.session.family_kit import family_renderer
from unit.session.test_family_table import replies

from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.reply import SampledReply
from milepost.actors.session.streaming import ReplyStream
from milepost.actors.session.text.proof import TOOLS
from milepost.actors.session.work import read_reply
from milepost.messages.shared import FinishReason

DSML = "｜DSML｜"
CALL = '{"name": "look_up", "arguments": {"key": "a\\"b\\\\ {} </tool_call> \\u00e9"}}'
SAID = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", CALL, f"<tool_call>{CALL}</tool_call>",
    '{"name": "count_up", "parameters": {"count": [{"a": ";"}]}}', "\n", "\n\n", " ", "<", "</",
    "<|",
    "é", "日本", "🍎", "\\", '"', "{", "}", ";", "7", "null", "key", "count", "look_up",
    "<function=look_up>", "<parameter=key>", "</parameter>", "</function>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="look_up">', "</invoke>",
    '<parameter name="key">', f"<{DSML}function_calls>", f"</{DSML}function_calls>",
    f"<{DSML}tool_calls>", f"</{DSML}tool_calls>", f'<{DSML}invoke name="look_up">',
    f"</{DSML}invoke>", f'<{DSML}parameter name="key" string="true">', f"</{DSML}parameter>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "functions.look_up:0", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|python_tag|>",
    "<|start|>assistant", "<|channel|>", "analysis", "commentary", " to=functions.look_up",
    " to=bash", "<|message|>", "<|end|>", "<|im_start|>",
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(DECLARATIONS))
@settings(max_examples=40)
@given(
    data=st.data(),
    tail=st.sampled_from(["", "<think>\n"]),
    ends=st.booleans(),
    has_tools=st.booleans(),
    sizes=st.lists(st.integers(1, 9), max_size=40),
)
def test_a_stream_cut_at_any_token_reads_as_the_whole_reply(
    name: str,
    data: st.DataObject,
    tail: str,
    ends: bool,  # noqa: FBT001
    has_tools: bool,  # noqa: FBT001
    sizes: list[int],
) -> None:
    """Halves of characters, markup of other families, calls that never end, bytes that are none.

    Tokens are single bytes here, and control tokens: every cut that a tokenizer may make.
    """
    renderer = family_renderer(name)
    tokenizer, stops = renderer.tokenizer, renderer.family.stop_token_ids
    own = st.sampled_from(replies(name))
    words = data.draw(st.lists(own | st.sampled_from(SAID) | st.binary(max_size=3), max_size=9))
    token_ids = [
        token
        for word in words
        for token in (tokenizer.encode(word).tolist() if isinstance(word, str) else word)
        if token not in stops
    ]
    token_ids += [stops[0]] if ends or not token_ids else []
    finish = FinishReason.STOP if token_ids[-1] == stops[0] else FinishReason.LENGTH
    sampled = np.array(token_ids, dtype=np.int32)
    reply = SampledReply(sampled, np.zeros(len(sampled), np.float32), (), finish, "engine-0")
    tools = TOOLS if has_tools else []
    parsed = read_reply(reply, tail, 2, tools, renderer)
    parser = renderer.family.reply_parser(tail, turn=2, tools=tools)
    stream = ReplyStream(tokenizer.decode, parser, stops)
    deltas, start = [], 0
    for size in sizes:
        deltas += stream.feed(start, token_ids[start : start + size])
        start = min(start + size, len(token_ids))
    deltas += stream.finish(token_ids, parsed)
    assert "".join(delta.content for delta in deltas) == parsed.content
    assert "".join(delta.reasoning for delta in deltas) == parsed.reasoning
    assert tuple(call for delta in deltas for call in delta.tool_calls) == parsed.tool_calls
