"""Edges, conditions and copied messages, as `milepost tap` reads them."""

from __future__ import annotations

import argparse
import struct
from typing import Any

import pytest
from msgspec import structs

from milepost.configs.problem import ConfigError
from milepost.launch.commands import tap
from milepost.launch.traffic.condition import Condition
from milepost.launch.traffic.edges import parse_edge, spots_of
from milepost.launch.traffic.seen import Array, read_copy
from milepost.messages.bulk import Bulk
from milepost.messages.codec import Codec
from milepost.messages.engine import Generate
from milepost.messages.envelope import PROTOCOL, Header, pack_header
from milepost.messages.examples import example
from milepost.messages.msgpacking import pack
from milepost.messages.shared import Message
from milepost.messages.supervisor import TrafficCopy

FIELDS = ("reward", "status", "turns", "group_id", "inner", "type")
NAMES = ("rollout", "session-0", "session-1", "buffer", "supervisor")
ENVELOPE = {"type": "T", "source": "a-0", "to": "b-0", "kind": "tell", "bytes": 300}
MESSAGE = {"reward": 0.5, "status": "failed", "turns": [1, 2, 3], "inner": {"deep": [7]}, "type": 9}


def test_a_named_sender_is_tapped_where_it_sends() -> None:
    spots = list(spots_of(parse_edge("session-* -> buffer"), NAMES))
    assert [(spot.actor, spot.peers, spot.sent, spot.received) for spot in spots] == [
        ("session-0", "buffer", True, False),
        ("session-1", "buffer", True, False),
    ]


def test_what_everybody_sends_is_tapped_where_it_arrives() -> None:
    """One tap in place of one in every process."""
    (spot,) = spots_of(parse_edge("*->buffer"), NAMES)
    assert (spot.actor, spot.peers, spot.sent, spot.received) == ("buffer", "*", False, True)
    (both,) = spots_of(parse_edge("* <-> buffer"), NAMES)
    assert (both.sent, both.received) == (True, True)


@pytest.mark.parametrize("text", ["", "buffer", "a -> b -> c", "a => b", "a ->", "a; -> b"])
def test_what_is_no_edge_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no edge at EDGE"):
        parse_edge(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("reward == 0.5", True),
        ("reward > 0.5 or status in ['failed', 'aborted']", True),
        ("0 < reward <= 0.5", True),
        ("not status == 'failed'", False),
        ("-1 < -reward", True),
        ("len(turns) == 3 and turns[0] == 1 and turns[-1] == 3", True),
        ("inner.deep[0] == 7", True),
        ("inner['deep'][0] != 7", False),
        ("type == 'T' and message.type == 9", True),
        ("'a' in source and bytes >= 300", True),
        ("status == null", False),
        ("true", True),
        ("turns", True),
        # what the message has not, or cannot be compared, does not hold; what is around it may
        ("group_id == 'g'", False),
        ("group_id != 'g'", False),
        ("not group_id == 'g'", True),
        ("inner.missing.deep > 3 or reward > 0", True),
        ("turns[9] == 1", False),
        ("status > 3", False),
        ("status > 3 or true", True),
    ],
)
def test_conditions_hold_for_what_they_say(text: str, holds: bool) -> None:  # noqa: FBT001
    assert Condition(text, FIELDS).holds(ENVELOPE, MESSAGE) is holds


CUT = {
    "ids": Array("int32", [90], list(range(64))),
    "other": Array("int32", [90], list(range(64))),
    "whole": Array("int32", [2], [5, 6]),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("len(ids) == 90 and ids[63] == 63 and 63 in ids", True),
        ("not 63 not in ids", True),
        ("whole[-1] == 6 and 7 not in whole and not 7 in whole", True),
        ("whole[2] == 7", False),
        ("whole == [5, 6] and [5, 6] == whole and not whole == [5] and whole != [6, 5]", True),
        ("whole == whole and whole != ids and whole != 5", True),
        (f"ids == {[0] * 90}", False),
        ("ids[90] == 0", False),
        # beyond what a tap copied; the rest of a condition may still decide
        ("ids[-1] == 63", None),
        ("ids[64] == 64", None),
        ("ids[64] != 64", None),
        ("0 <= ids[64] < 99", None),
        (f"ids == {list(range(90))}", None),
        (f"ids != {list(range(90))}", None),
        ("ids == other", None),
        ("64 in ids", None),
        ("64 not in ids", None),
        ("(64 in ids) == false", None),
        ("(64 in ids or reward > 1) == false", None),
        ("64 in ids and reward == 0.5", None),
        ("reward == 0.5 and 64 in ids", None),
        ("64 in ids or reward > 1", None),
        ("64 in ids or reward == 0.5", True),
        ("64 in ids and reward > 1", False),
    ],
)
def test_what_was_not_copied_of_an_array_is_not_known(text: str, holds: bool | None) -> None:  # noqa: FBT001
    """Neither it nor its negation holds: the last id of a row decides which rows are looked at."""
    names = ("ids", "other", "whole", "reward")
    condition, negated = Condition(text, names), Condition(f"not ({text})", names)
    found = [each.holds(ENVELOPE, MESSAGE | CUT) for each in (condition, negated)]
    assert found == [holds is True, holds is False]
    for each in (condition, negated):
        told = [why.detail for why in each.why_not if why.detail]
        assert told == ([": only the first 64 of 90 were copied"] if holds is None else [])


def test_a_tap_says_once_that_arrays_were_cut_however_long_each_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    tap.add_arguments(parser)
    reading = tap._Reading(parser.parse_args(["a-0 -> b-0"]))
    condition = Condition("token_ids[-1] == 3", ("token_ids",))
    for length in (1000, 1001):
        whole = Bulk("int32", (length,), struct.pack(f"<{length}i", *range(length)))
        message = structs.replace(example(Generate), token_ids=whole)
        seen = read_copy("a-0", copy_of(message))
        assert not condition.holds(seen.envelope, seen.fields)
        reading._tell_why_not(seen, condition)
    (line,) = capsys.readouterr().err.splitlines()
    told = "Generate cannot be compared by `token_ids[-1] == 3`"
    assert line == f"# {told}: only the first 64 of 1000 were copied"


@pytest.mark.parametrize("shape", [["a"], [2, "a"], [-3], [None], [1.5]])
def test_what_only_looks_like_an_array_stays_what_it_is(shape: list[Any]) -> None:
    """Data of the user's own travels in messages, too."""
    value = {"dtype": "int32", "shape": shape, "data": b""}
    copy = copy_of(example(Generate))
    seen = read_copy("a-0", TrafficCopy(**{**copy_fields(copy), "body": pack({"x": value})}))
    assert seen.fields == {"x": value}


def test_data_of_hundreds_of_levels_is_shown_down_to_a_bound() -> None:
    """An agent reports what it likes, and whoever looks on must not fall over it."""
    deep: Any = 1
    for _ in range(250):  # the most that is packed here; others may pack more
        deep = {"a": [deep]}
    copy = copy_of(example(Generate))
    seen = read_copy("a-0", TrafficCopy(**{**copy_fields(copy), "body": pack({"x": deep})}))
    assert seen.decoded_lines({})[0].count("a: [") == (100 - 1) // 2
    assert "(deeper than 100 levels)" in str(seen.as_json({}, decode=True)["fields"])


def test_a_tap_says_once_for_each_type_why_nothing_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whoever waits for a message must be able to tell a misspelling from silence."""
    parser = argparse.ArgumentParser()
    tap.add_arguments(parser)
    reading = tap._Reading(parser.parse_args(["a-0 -> b-0"]))
    copy = copy_of(example(Generate))
    whole, cut = read_copy("a-0", copy), read_copy("a-0", structs.replace(copy, body=b""))
    condition = Condition("request_id > 3", ("request_id",))
    for seen in (whole, whole, cut, cut):
        assert not condition.holds(seen.envelope, seen.fields)
        reading._tell_why_not(seen, condition)
    assert capsys.readouterr().err.splitlines() == [
        "# Generate cannot be compared by `request_id > 3`: not of one type",
        "# Generate cannot be compared: its body is longer than a tap copies",
    ]


@pytest.mark.parametrize(
    ("text", "why_not"),
    [
        ("inner.rewrd > 3", ["has no field `rewrd`"]),
        ("group_id == 'g' and reward > 9", ["has no field `group_id`"]),
        ("status > 3", ["cannot be compared by `status > 3`: not of one type"]),
        ("reward > 9", []),
    ],
)
def test_what_could_not_be_compared_is_known(text: str, why_not: list[str]) -> None:
    """A misspelt inner field looks like an edge on which nothing ever happens."""
    condition = Condition(text, FIELDS)
    assert not condition.holds(ENVELOPE, MESSAGE)
    assert [why.text for why in condition.why_not] == why_not


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reward =",
        "reward = 3",
        "__import__('os')",
        "status.upper() == 'F'",
        "(lambda: 1)()",
        "[x for x in turns]",
        "reward + 1 > 2",
        "9 ** 9 ** 9 > 1",
        "turns[0:2] == [1]",
        "status is null",
        "f'{status}' == 'failed'",
        "len(turns, turns)",
        "len(*turns)",
        "(reward := 3)",
        "reward if true else status",
        "{'a': 1}",
        "b'x' in status",
        "reward > 0 " + "or reward > 0 " * 60,
        "(" * 400 + "reward" + ")" * 400,
        "x" * 1001,
        "\0",
    ],
)
def test_nothing_but_comparisons_is_read(text: str) -> None:
    """A condition is data: whatever stands in it, nothing of it is ever run."""
    with pytest.raises(ConfigError, match="at --where"):
        Condition(text, FIELDS)


def copy_of(message: Message) -> TrafficCopy:
    encoded = Codec().encode(message)
    major, minor = PROTOCOL
    header = Header(major, minor, encoded.type, 7, 3, "a-0", 0, 1, "run", 5)
    frames: list[Any] = encoded.frames()
    return TrafficCopy(
        at_ns=1_000_000_000,
        outgoing=True,
        peer="b-0",
        kind="ask",
        num_bytes=900,
        header=pack_header(header),
        body=encoded.body,
        buffers=[bytes(frame[:256]) for frame in frames[1:]],
    )


def test_a_copy_is_read_with_the_first_values_of_its_arrays() -> None:
    seen = read_copy("a-0", copy_of(example(Generate)))
    assert seen.envelope["source"] == "a-0"
    assert seen.envelope["to"] == "b-0"
    assert seen.line().endswith("a-0 -> b-0  ask Generate  900 bytes  id 7 for 3")
    arrays = [value for value in seen.fields.values() if isinstance(value, Array)]
    assert [str(array) for array in arrays] == ["int32[3] 1 2 3"] * len(arrays) != []


def test_only_the_beginning_of_a_large_array_is_shown() -> None:
    whole = Bulk("int32", (1000,), struct.pack("<1000i", *range(1000)))
    message = structs.replace(example(Generate), token_ids=whole)
    found = read_copy("a-0", copy_of(message)).fields["token_ids"]
    assert str(found) == "int32[1000] 0 1 2 3 4 5 6 7 ..."
    assert len(found) == 1000
    assert found.first == list(range(64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_kind_of_number_is_shown(dtype: str) -> None:
    data = {"bfloat16": "c03f", "float16": "003e", "float32": "0000c03f"}[dtype]
    body = {"x": {"dtype": dtype, "shape": [1], "data": bytes.fromhex(data)}}
    copy = copy_of(example(Generate))
    seen = read_copy("a-0", TrafficCopy(**{**copy_fields(copy), "body": pack(body)}))
    assert str(seen.fields["x"]) == f"{dtype}[1] 1.5"


def copy_fields(copy: TrafficCopy) -> dict[str, Any]:
    return {name: getattr(copy, name) for name in copy.__struct_fields__}


def test_a_body_that_was_too_long_is_told_by_its_size() -> None:
    copy = copy_of(example(Generate))
    seen = read_copy("a-0", TrafficCopy(**{**copy_fields(copy), "body": b""}))
    assert not seen.is_whole
    assert seen.decoded_lines({}) == ["    (the body is longer than a tap copies)"]
    assert seen.as_json({}, decode=True)["fields"] is None
