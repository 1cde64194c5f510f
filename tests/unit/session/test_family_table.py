"""Every declared family against its template, its seams, and its replies cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.session.family_kit import byte_tokenizer, family_renderer, renderer_of

from milepost.actors.session.families import Seam
from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.proof import TOOLS, prove, shapes
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.trajectory import Provenance

NAMES = sorted(DECLARATIONS)
DSML = "｜DSML｜"


@pytest.mark.parametrize("name", NAMES)
def test_family_and_template_fit(name: str) -> None:
    """Deltas, seams, rows and parsers agree with the template on every shape of conversation."""
    faults = [str(each) for each in prove(family_renderer(name)) if each.is_fault]
    assert faults == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != "qwen3"])
def test_another_family_s_template_is_found_out(name: str) -> None:
    """A topology that names the wrong family is refused at start-up, with the first difference."""
    other = "qwen3" if not name.startswith("qwen3_") else "qwen3.5"
    declared = [DECLARATIONS[each] for each in (name, other)]
    special = {text: None for each in declared for text in (*each.frame, *each.stops)}
    wrong = renderer_of(other, byte_tokenizer(tuple(special)), folder_of(name))
    assert any(each.is_fault for each in prove(wrong))


def folder_of(name: str) -> Any:
    """Where this family's template lies."""
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="milepost-family-"))
    source = family_renderer(name).template._sources["default"]
    (folder / "chat_template.jinja").write_text(source)
    return folder


@pytest.mark.parametrize(
    ("name", "last", "drop", "insert"),
    [
        ("qwen3", "<|im_end|>", 0, "\n"),
        ("qwen3", "a", 0, ""),
        ("glm", "<|observation|>", 1, ""),
        ("glm", "<|user|>", 1, ""),
        ("glm", "<|endoftext|>", 0, ""),
        ("glm", "a", 0, ""),
        ("minimax_m2.5", "[e~[", 0, "\n"),
        ("gpt_oss", "<|return|>", 1, "<|end|>"),
        ("gpt_oss", "<|call|>", 0, ""),
        ("kimi_k2.5", "<|im_end|>", 0, ""),
        ("llama3", "<|eot_id|>", 0, ""),
        ("deepseek_v3.2", "<｜end▁of▁sentence｜>", 0, ""),
    ],
)
def test_seams(name: str, last: str, drop: int, insert: str) -> None:
    """What a template writes between a reply and the next message, and no model samples."""
    renderer = family_renderer(name)
    (token,) = renderer.tokenizer.encode(last).tolist()
    inserted = tuple(renderer.tokenizer.encode(insert).tolist())
    assert renderer.family.seam(token) == Seam(drop=drop, insert=inserted)
    assert renderer.family.seam(None) == Seam()
    assert drop <= renderer.family.trim_max


def read(name: str, text: str, *, tail: str = "", tools: Any = TOOLS) -> Any:
    """A reply, read in one piece."""
    reader = family_renderer(name).family.reply_parser(tail, turn=3, tools=tools)
    reader.feed(text)
    reader.finish()
    return reader.reply()


def calls(name: str, text: str) -> list[tuple[str, Any]]:
    """Its calls, arguments read."""
    return [(call.name, json.loads(call.arguments)) for call in read(name, text).tool_calls]


FUNCTION = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
INVOKE = "<minimax:tool_call>\n{}</minimax:tool_call>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "qwen3.5",
            FUNCTION.format(
                "look_up",
                "<parameter=key>\n7\n</parameter>\n<parameter=count>\n7\n</parameter>\n",
            ),
            [("look_up", {"key": "7", "count": 7})],
        ),
        ("qwen3.5", FUNCTION.format("look_up", ""), [("look_up", {})]),
        (
            "qwen3.5",
            FUNCTION.format("unknown", "<parameter=x>\n[1]\n</parameter>\n"),
            [("unknown", {"x": [1]})],
        ),
        (
            "qwen3.5",
            FUNCTION.format("look_up", "<parameter=key>\na\n\nb\n</parameter>\n") * 2,
            [("look_up", {"key": "a\n\nb"})] * 2,
        ),
        (
            "glm",
            (
                "<tool_call>look_up\n<arg_key>count</arg_key>\n<arg_value>7</arg_value>\n"
                "<arg_key>key</arg_key><arg_value>7</arg_value></tool_call>"
            ),
            [("look_up", {"count": 7, "key": "7"})],
        ),
        ("glm", "<tool_call>count_up</tool_call>", [("count_up", {})]),
        (
            "minimax_m2.5",
            INVOKE.format('<invoke name="count_up">\n</invoke>\n'),
            [("count_up", {})],
        ),
        (
            "minimax_m2.5",
            INVOKE.format(
                '<invoke name="look_up"><parameter name="key">{}</parameter></invoke>'
                '<invoke name="count_up"><parameter name="count">2</parameter></invoke>'
            ),
            [("look_up", {"key": "{}"}), ("count_up", {"count": 2})],
        ),
        (
            "deepseek_v3.2",
            (
                f"x\n\n<{DSML}function_calls>\n"
                f'<{DSML}invoke name="look_up">\n'
                f'<{DSML}parameter name="key" string="true">7</{DSML}parameter>\n'
                f'<{DSML}parameter name="count" string="false">7</{DSML}parameter>\n'
                f'</{DSML}invoke>\n<{DSML}invoke name="count_up">\n</{DSML}invoke>\n'
                f"</{DSML}function_calls>"
            ),
            [("look_up", {"key": "7", "count": 7}), ("count_up", {})],
        ),
        (
            "kimi_k2.5",
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:4"
                '<|tool_call_argument_begin|>{"key": "a"}<|tool_call_end|><|tool_call_begin|>'
                "functions.count_up:5<|tool_call_argument_begin|>{}<|tool_call_end|>"
                "<|tool_calls_section_end|>"
            ),
            [("look_up", {"key": "a"}), ("count_up", {})],
        ),
        (
            "llama3",
            (
                '{"name": "look_up", "parameters": {"key": "a; b"}}; {"name": "count_up", '
                '"parameters": {}}'
            ),
            [("look_up", {"key": "a; b"}), ("count_up", {})],
        ),
        (
            "llama3",
            '<|python_tag|>{"name": "look_up", "parameters": {"key": "a"}}',
            [("look_up", {"key": "a"})],
        ),
        (
            "gpt_oss",
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
                'to=functions.look_up <|constrain|>json<|message|>{"name": "other", "key": "a"}'
            ),
            [("look_up", {"name": "other", "key": "a"})],
        ),
        (
            "gpt_oss",
            ' to=functions.count_up<|channel|>commentary json<|message|>{"count": 2}',
            [("count_up", {"count": 2})],
        ),
    ],
)
def test_calls_are_read_as_they_are_written(
    name: str, text: str, expected: list[tuple[str, Any]]
) -> None:
    """Types come from the schema: others quote integers, lose empty arguments or later calls."""
    assert calls(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3.5", "<tool_call>\n{}\n</tool_call>"),
        ("qwen3.5", FUNCTION.format("f", "stray")),
        ("glm", "<tool_call>f<arg_key>a</arg_key></tool_call>"),
        ("minimax_m2.5", INVOKE.format("nothing")),
        ("minimax_m2.5", INVOKE.format('<invoke name="f">stray</invoke>')),
        ("kimi_k2.5", "<|tool_calls_section_begin|>x<|tool_calls_section_end|>"),
        ("llama3", '{"name": "f", "parameters": 3}'),
        ("llama3", '{"key": 1}'),
        ("llama3", "the { in"),
        ("deepseek_v4", f"<{DSML}tool_calls></{DSML}tool_calls>"),
        (
            "deepseek_v4",
            (
                f'<{DSML}tool_calls><{DSML}invoke name="f">'
                f'<{DSML}parameter name="a" string="false">{{'
                f"</{DSML}parameter></{DSML}invoke></{DSML}tool_calls>"
            ),
        ),
    ],
)
def test_what_is_malformed_stays_visible(name: str, text: str) -> None:
    """An agent can only react to what it sees."""
    reply = read(name, text)
    assert (reply.content, reply.tool_calls) == (text, ())


def test_harmony_channels() -> None:
    """analysis is reasoning, final is content, a broken call is content, whatever its channel."""
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b <"
    reply = read("gpt_oss", text)
    assert (reply.reasoning, reply.content, reply.tool_calls) == ("a", "b <", ())
    broken = "<|channel|>commentary to=functions.look_up<|message|>{"
    assert "{" in read("gpt_oss", broken).content
    assert read("gpt_oss", "no channel at all").content == "no channel at all"
    assert read("gpt_oss", broken + "}", tools=[]).content == "{}"


def test_a_harmony_message_to_no_function_keeps_its_header() -> None:
    """A model that calls `bash` where the function is another must be able to see what it did."""
    said = '<|channel|>commentary to=bash <|constrain|>json<|message|>{"cmd": "ls"}'
    reply = read("gpt_oss", said)
    assert (reply.content, reply.tool_calls) == (said, ())
    thought = "<|channel|>analysis to=python code<|message|>1"
    assert read("gpt_oss", thought).reasoning == thought
    assert read("gpt_oss", "<|channel|>commentary<|message|>to=bash").content == "to=bash"


@pytest.mark.parametrize(("name", "stop"), [("gpt_oss", "<|endoftext|>"), ("nemotron3", "</s>")])
def test_what_a_vendor_calls_the_end_of_a_text_ends_a_reply(name: str, stop: str) -> None:
    """A model that samples it says nothing after it that anybody taught it."""
    renderer = family_renderer(name)
    assert renderer.tokenizer.token_id(stop) in renderer.family.stop_token_ids


def test_ids_that_the_model_writes_are_kept() -> None:
    """Kimi's template names a result by the id of its call."""
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|> functions.look_up:12 "
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    (call,) = read("kimi_k2.5", text).tool_calls
    assert call.call_id == "functions.look_up:12"


def replies(name: str) -> list[str]:
    """Every reply of the proof's conversations, as the template writes it."""
    renderer = family_renderer(name)
    texts = []
    for shape in shapes(renderer):
        try:
            prompt = renderer.template.render(shape.before, shape.tools, generate=True)
            whole = renderer.template.render(
                [*shape.before, shape.reply], shape.tools, generate=False
            )
        except RenderFailed:
            continue
        if whole.startswith(prompt):
            texts.append(whole[len(prompt) :])
    return texts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tail", ["", "<think>\n"])
@given(data=st.data())
def test_every_cut_of_a_reply_reads_the_same(name: str, tail: str, data: st.DataObject) -> None:
    """Streamed by one implementation: nothing is lost, merged or quoted where a stream is cut."""
    texts = replies(name)
    parts = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=2))
    text = "".join(parts)
    low = data.draw(st.integers(0, len(text)))
    text = text[low : low + data.draw(st.integers(0, 200))] if data.draw(st.booleans()) else text
    family = family_renderer(name).family

    def parsed(pieces: list[str]) -> Any:
        reader = family.reply_parser(tail, turn=0, tools=TOOLS)
        deltas = [delta for piece in pieces for delta in reader.feed(piece)] + reader.finish()
        reply = reader.reply()
        assert "".join(delta.content for delta in deltas) == reply.content
        assert "".join(delta.reasoning for delta in deltas) == reply.reasoning
        assert tuple(call for delta in deltas for call in delta.tool_calls) == reply.tool_calls
        return reply

    whole = parsed([text])
    assert parsed(list(text)) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert parsed([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt_oss"])
def test_recorded_replies_are_found_and_end_with_a_stop_token(name: str) -> None:
    """Supervised runs train exactly what a model would sample after the same prompt."""
    renderer = family_renderer(name)
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "reasoning_content": "hm"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four", "reasoning_content": "so"},
    ]
    row = conversation_row(renderer, messages, ())
    decode = renderer.tokenizer.decode
    ids = row.token_ids.tolist()
    for (start, end), content in zip(row.turns, ("two", "four"), strict=True):
        assert content in decode(ids[start:end])
        assert (row.provenance[start:end] == Provenance.RECORDED).all()
    start, end = row.turns[0]
    assert ids[end - 1] in renderer.family.stop_token_ids
    prompt = renderer.template.render(messages[:1], generate=True)
    assert decode(ids[:start]) == prompt


def test_a_harmony_conversation_of_several_replies_is_refused_by_name() -> None:
    """Its template ends the last reply otherwise than the ones before it."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 2]
    with pytest.raises(RenderFailed, match="message 1 is not rendered the same"):
        conversation_row(family_renderer("gpt_oss"), messages, ())
    row = conversation_row(family_renderer("gpt_oss"), messages[:2], ())
    assert len(row.turns) == 1
