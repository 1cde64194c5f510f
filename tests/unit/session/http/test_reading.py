"""What clients send: addresses, fields, replayed histories, one conversation in three dialects."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from unit.session.kit import LOOKUP, spec

from milepost.actors.session.addresses import Addresses
from milepost.actors.session.history import Replayed
from milepost.actors.session.http.anthropic_messages import AnthropicMessages
from milepost.actors.session.http.chat_completions import ChatCompletions
from milepost.actors.session.http.dialect import Asked, Dialect, Reading
from milepost.actors.session.http.fields import Fields, check_effort
from milepost.actors.session.http.replay import Replay
from milepost.actors.session.http.responses import Responses
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.run import record_maker
from milepost.actors.session.state import Session
from milepost.actors.session.validation import check_tools
from milepost.configs.actors import SessionConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.http.replay import Convert

ARGUMENTS = '{"name":  "kai", "field": "pet"}'
CALL = {
    "id": "call_0_0",
    "type": "function",
    "function": {"name": "lookup", "arguments": ARGUMENTS},
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the pet of kai?"},
    {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "hm",
        "tool_calls": [CALL],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": "cat"},
]
FUNCTION = LOOKUP["function"]
BODIES: list[tuple[Dialect, dict[str, Any]]] = [
    (ChatCompletions(), {"messages": CONVERSATION, "tools": [LOOKUP], "max_tokens": 9}),
    (
        Responses(),
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "What is the pet of kai?"},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "id": "x", "status": "completed",
                 "content": [{"type": "output_text", "text": "Let me look."}]},
                {"type": "function_call", "call_id": "call_0_0", "name": "lookup",
                 "arguments": ARGUMENTS},
                {"type": "function_call_output", "call_id": "call_0_0", "output": "cat"},
            ],
            "tools": [{"type": "function", **FUNCTION}],
            "max_output_tokens": 9,
        },
    ),
    (
        AnthropicMessages(),
        {
            "system": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
            ],
            "messages": [
                {"role": "user", "content": "What is the pet of kai?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "call_0_0", "name": "lookup",
                     "input": {"field": "pet", "name": "kai"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "call_0_0", "content": "cat"},
                ]},
            ],
            "tools": [{"name": FUNCTION["name"], "description": FUNCTION["description"],
                       "input_schema": FUNCTION["parameters"]}],
            "max_tokens": 9,
        },
    ),
]  # fmt: skip


def _result(content: object) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "call_0_0", "content": content}
    return {"messages": [{"role": "user", "content": [block]}]}


def reading(**options: Any) -> Reading:
    record = record_maker(SessionConfig())(("user", "tool"))
    record.sampled_calls.add({"tool_calls": [CALL]})
    session = Session(spec("g.0"), record, "rollout", 0.0)
    return Reading(session, Replay(), options)


def read(dialect: Dialect, body: dict[str, Any], dropped: tuple[str, ...] = ()) -> Asked:
    return dialect.read(Fields(msgspec.json.encode(body), dropped), reading())


@pytest.mark.parametrize(("dialect", "body"), BODIES)
def test_one_conversation_reads_the_same_in_every_dialect(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    """Mixed on one session, they must meet the same stored messages, arguments to the letter."""
    asked = read(dialect, body)
    assert asked.messages == CONVERSATION
    assert asked.tools == [LOOKUP]
    assert asked.tokens_max == 9


@pytest.mark.parametrize(
    ("dialect", "change", "named"),
    [
        (BODIES[0][0], {"tool_choice": "required"}, "tool_choice"),
        (BODIES[0][0], {"tools": [{"type": "web_search"}]}, "tools[0]"),
        (BODIES[0][0], {"top_k": 5}, "top_k"),
        (
            BODIES[0][0],
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        (BODIES[1][0], {"previous_response_id": "resp_1"}, "has no such response"),
        (BODIES[1][0], {"conversation": "conv_1"}, "conversation"),
        (BODIES[1][0], {"input": [{"type": "computer_call"}]}, "input[0]"),
        (BODIES[1][0], {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (BODIES[1][0], {"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        (
            BODIES[1][0],
            {"tools": [{"type": "function", **FUNCTION, "defer_loading": True}]},
            "tools[0].defer_loading = true",
        ),
        (BODIES[2][0], {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.type"),
        (BODIES[2][0], {"stop_sequences": ["x"]}, "stop_sequences"),
        (BODIES[2][0], {"tool_choice": {"type": "any"}}, "tool_choice"),
        (BODIES[2][0], {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        (BODIES[2][0], {"tools": [{"name": "f", "input_schema": {}, "strict": True}]}, "strict"),
        (
            BODIES[2][0],
            {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{"a": 1}]}]},
            "tools[0].input_examples",
        ),
        (BODIES[2][0], {"system": 0}, "system is int"),
        (BODIES[2][0], {"system": {}}, "system is dict"),
        (BODIES[2][0], {"system": [{"type": "image"}]}, "system[0] is of type image"),
        (BODIES[2][0], {"messages": [{"role": "user", "content": []}]}, "messages[0].content is"),
        (BODIES[2][0], _result(5), "messages[0].content[0].content is int"),
        (BODIES[2][0], _result({"type": "text"}), "messages[0].content[0].content is dict"),
        (BODIES[2][0], _result([{"type": "image"}]), "messages[0].content[0].content[0] is of"),
        (
            BODIES[2][0],
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0] is of type image",
        ),
    ],
)
def test_what_a_dialect_cannot_do_is_refused_by_name(
    dialect: Dialect, change: dict[str, Any], named: str
) -> None:
    """Each would change what is sampled, or what the model sees, without a word."""
    body = next(body for known, body in BODIES if known is dialect)
    with pytest.raises(TurnRefused) as caught:
        read(dialect, {**body, **change})
    assert named in str(caught.value)
    assert caught.value.kind == "bad_request"


def test_a_tool_without_a_name_is_left_to_the_check_of_tools() -> None:
    """Which every dialect shares: a field that is missing must not be a failure of the server."""
    tools = [{"description": "d", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]
    asked = read(BODIES[2][0], {**BODIES[2][1], "tools": tools})
    with pytest.raises(TurnRefused, match="has no function with a name"):
        check_tools(asked.tools)


def test_dropped_fields_are_dropped_but_never_those_of_the_server() -> None:
    """The topology may say that a harness's temperature means nothing; ids are never a client's."""
    body = {**BODIES[0][1], "temperature": 0.2}
    with pytest.raises(TurnRefused, match="temperature"):
        read(BODIES[0][0], body)
    assert read(BODIES[0][0], body, ("temperature",)).tokens_max == 9
    with pytest.raises(TurnRefused, match="input_ids"):
        read(BODIES[0][0], {**body, "input_ids": [1]}, ("temperature", "input_ids"))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    """With 400, not with a dead server."""
    with pytest.raises(TurnRefused):
        Fields(body)


def test_effort_is_met_or_refused() -> None:
    """An effort that is ignored would train a model that thinks otherwise than asked."""
    check_effort(None, {}, "reasoning_effort")
    check_effort("none", {"enable_thinking": False}, "reasoning_effort")
    check_effort("low", {"reasoning_effort": "low"}, "reasoning_effort")
    for effort, options in (("none", {}), ("high", {"enable_thinking": True}), ("high", {})):
        with pytest.raises(TurnRefused, match="reasoning_effort"):
            check_effort(effort, options, "reasoning_effort")


def replayed(replay: Replay, body: Sequence[bytes], convert: Convert | None = None) -> Replayed:
    """The conversation of a body that has one."""
    fields = Fields(replay.begin(body))
    raw, place = fields.raw("messages"), fields.place("messages")
    return replay.messages(raw, convert or _same, "messages", place)


def test_a_replayed_history_is_read_once() -> None:
    """The cost of a turn grows with its new text: what was sent before is the very same object."""
    replay = Replay()
    seen = []

    def convert(item: dict[str, Any], index: int) -> tuple[dict[str, Any], ...]:
        seen.append(index)
        return (item,)

    def send(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return replayed(replay, [msgspec.json.encode({"messages": messages})], convert)

    first = send(CONVERSATION[:2])
    second = send(CONVERSATION)
    assert seen == [0, 1, 2, 3]
    assert first is second, "nobody looks at the messages that were there before"
    changed = send([CONVERSATION[0], {"role": "user", "content": "other"}, *CONVERSATION[2:]])
    assert seen[4:] == [1, 2, 3]
    assert changed[0] is first[0]
    assert changed[1]["content"] == "other"


def test_of_a_long_body_only_what_is_new_is_looked_at() -> None:
    """Turn after turn, however the body arrives; what was left out is still there, to the byte."""
    generator, replay, said = random.Random(0), Replay(), list[dict[str, Any]]()
    for number in range(30):
        said += [{"role": "user", "content": f"{number} " + "x" * 50}] * 2
        body = json.dumps({"model": "m", "messages": said, "stop": []}).encode()
        pieces = _pieces(body, generator)
        short = replay.begin(pieces)
        assert len(short) < 220, f"turn {number} scans {len(short)} of {len(body)} bytes"
        assert replayed(replay, pieces) == said
    for changed in (body.replace(b"7 x", b"7 y"), body.replace(b'"model"', b'"mode1"')):
        longer = changed.replace(b"}]", b"}, {}]")
        assert replay.begin(_pieces(longer, generator)) == longer


def test_a_comma_too_many_is_no_json_however_little_of_it_is_read() -> None:
    """What is left out of a body must not make the rest of it right."""
    replay = Replay()
    body = b'{"messages":[{"role":"user","content":"a"}]}'
    replayed(replay, [body])
    for end in (b",]}", b", \n]}"):
        with pytest.raises(TurnRefused, match="comma"):
            replayed(replay, [body[:-2], end])


def test_a_field_that_stands_twice_in_a_message_is_told_by_its_place() -> None:
    """The reader of JSON takes the last of them, and nobody knows which was meant."""
    first = b'{"messages":[{"role":"user","content":"a"}'
    replay = Replay()
    replayed(replay, [first + b"]}"])
    for twice in (
        b'"content":"a","content":"b"',
        b'"content" : "a", "c\\u006fntent":"a" ',
        b'"content":"%b","content":"b"' % (b"x" * 3000),
        b'"a/b":"a", "a\\/b":"a" ',
    ):
        with pytest.raises(TurnRefused, match=r"messages\[1\].(content|a/b) stands twice"):
            replayed(replay, [first + b',{"role":"user",' + twice + b"}]}"])
    once = b',{"role":"user","content":"content","a":{"content":"role"},"b":"\\u0061"}]}'
    assert len(replayed(replay, [first + once])) == 2


def test_another_list_of_that_name_is_not_taken_for_the_messages() -> None:
    """A client may keep its history in a field that nobody reads, and lengthen it there as well.

    What is left out of the body would be one message of the other list, and one of these twice.
    """
    replay = Replay()
    for number in range(1, 4):
        said = CONVERSATION[:number]
        body = json.dumps({"metadata": {"messages": said}, "messages": said}).encode()
        assert replayed(replay, [body]) == said


def test_a_tool_with_an_argument_of_that_name_leaves_the_messages_to_be_found() -> None:
    """A tool that sends mail has one; every turn would be parsed from its beginning."""
    replay = Replay()
    head = b'{"tools":[{"messages":{"type":"array"},"required":["messages"]}],"messages":'
    replayed(replay, [head + msgspec.json.encode(CONVERSATION[:2]) + b"}"])
    body = head + msgspec.json.encode(CONVERSATION) + b"}"
    assert len(replay.begin([body])) < len(body) - len(msgspec.json.encode(CONVERSATION[0]))
    assert replayed(replay, [body]) == CONVERSATION


def test_no_piece_of_a_long_body_is_copied_but_what_is_new_and_what_stands_before_it() -> None:
    """Tools may fill the first piece; the history behind them is still not put together."""
    replay, said = Replay(), [{"role": "user", "content": "x" * 1_000_000}]
    tools = [{"type": "function", "description": "y" * 100_000}]
    body = json.dumps({"tools": tools, "messages": said}).encode()
    replayed(replay, [body])
    longer = json.dumps({"tools": tools, "messages": [*said, CONVERSATION[1]]}).encode()
    pieces = [longer[at : at + 65_536] for at in range(0, len(longer), 65_536)]
    tracemalloc.start()
    try:
        short = replay.begin(pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(short) < 101_000
    assert peak < 400_000, f"{peak} bytes are held to read {len(short)}"


def _same(item: dict[str, Any], _: int) -> tuple[dict[str, Any], ...]:
    return (item,)


def _pieces(body: bytes, generator: random.Random) -> list[bytes]:
    """As they may arrive."""
    cuts = sorted(generator.choices(range(1, len(body)), k=generator.choice([0, 0, 1, 2, 5])))
    return [body[a:b] for a, b in pairwise([0, *dict.fromkeys(cuts), len(body)])]


@pytest.mark.parametrize("seed", range(30))
def test_what_was_not_parsed_again_is_what_parsing_gives(seed: int) -> None:
    """Histories grow, are tried again, change in the middle, are spaced otherwise: all the same.

    What was given out before only ever grows: whoever knows its beginning knows it for good.
    """
    generator = random.Random(seed)
    replay, history = Replay(), list[dict[str, Any]]()
    first, given = tuple[dict[str, Any], ...](), list[tuple[Replayed, str]]()
    tool = {"type": "function", "function": {"name": "mail", "messages": []}}
    extra: dict[str, Any] = {"model": "m", "tools": [tool], "stop": [], "metadata": {}}
    for number in range(25):
        step = generator.random()
        if step < 0.15 and history:
            del history[generator.randrange(len(history)) :]
        elif step < 0.25 and history:
            place = generator.randrange(len(history))
            history[place] = {"role": "user", "content": f'changed "messages":[{number}]'}
        for _ in range(generator.randint(0, 2)):
            history.append({"role": "user", "content": f"text {number} ]}},{{ \\"})
        names = generator.sample([*extra, "messages"], 5)
        extra["metadata"] = {"messages": generator.choice([[], history[:1], history])}
        fields = {name: history if name == "messages" else extra[name] for name in names}
        indent = generator.choice([None, None, 1])
        body = json.dumps(fields, indent=indent, separators=(",", ":")).encode()
        read = Fields(replay.begin(_pieces(body, generator)))
        if generator.random() < 0.1:
            first = ({"role": "system", "content": f"system {number % 3}"},)
        raw, place = read.raw("messages") or b"[]", read.place("messages")
        found = replay.messages(raw, _same, "messages", place, first)
        assert found == [*first, *history]
        given.append((found, json.dumps(found)))
        for earlier, told in given:
            assert json.dumps(earlier).startswith(told[:-1])
        assert read.take("tools", object) == extra["tools"]


def test_addresses_cannot_be_guessed_nor_used_for_another_attempt() -> None:
    """Names of trajectories stand in logs; an address is for whoever was given it."""
    addresses = Addresses("http://127.0.0.1:1", b"secret")
    key = addresses.key("g0.1", 2)
    assert addresses.read(key) == ("g0.1", 2)
    assert addresses.read("g0.1") == ("g0.1", 0)
    assert addresses.key("g0.1", 3) != key
    for place in range(len(key)):
        forged = key[:place] + ("A" if key[place] != "A" else "B") + key[place + 1 :]
        assert addresses.read(forged) in ((forged, 0), ("g0.1", 2))
    assert Addresses("", b"other").read(key) == (key, 0)
    assert addresses.url(spec("g0.1")).startswith("http://127.0.0.1:1/sessions/")
