"""When a replayed message is the stored one. The table is the product's promise, row by row."""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.session.matchers import (
    MATCHERS,
    loose_tool_call,
    resolve_matcher,
    role_content_only,
    strict,
)
from milepost.actors.session.refusal import TurnRefused

ABSENT = object()


def call(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    """An assistant message with one call."""
    function = {"name": "lookup"}
    if arguments is not ABSENT:
        function["arguments"] = arguments
    made = {"id": "call-A", "type": "function", "function": function, **fields}
    return {"role": "assistant", "content": "", "tool_calls": [made]}


def content(value: Any = ABSENT) -> dict[str, Any]:
    """A message with this content, or none."""
    return {"role": "user"} if value is ABSENT else {"role": "user", "content": value}


REPLAYED = call('{"city":"Paris"}', index=91)
STORED = {**call('{"city":"Paris"}', index=0), "reasoning_content": None, "wire_metadata": "a"}
NESTED = '{"a":' + "[" * 2000 + "]" * 2000 + "}"

CASES: list[tuple[str, Any, Any, bool, bool]] = [
    ("index and foreign keys are ignored", STORED, {**REPLAYED, "wire_metadata": "b"}, True, True),
    ("empty text and empty object", call(""), call({}), False, True),
    ("blank inside an object", call("{}"), call("{ }"), False, True),
    ("true is not 1", call('{"value":true}'), call('{"value":1}'), False, False),
    ("the order of a list counts", call('{"v":[1,2]}'), call('{"v":[2,1]}'), False, False),
    ("the order of keys does not", call('{"a":1,"b":2}'), call('{"b":2,"a":1}'), False, True),
    ("1 and 1.0", call('{"v":1}'), call('{"v":1.0}'), False, True),
    ("numbers are exact", call('{"v":1e999}'), call('{"v":10e998}'), False, True),
    ("close numbers differ", call('{"v":0.1}'), call('{"v":0.1000000000000000055}'), False, False),
    ("escapes are decoded", call('{"v":"\\u00e9"}'), call('{"v":"\u00e9"}'), False, True),
    ("text and the object it spells", call('{"v":1}'), call({"v": 1}), False, True),
    ("blank text is not empty", call(" "), call("{}"), False, False),
    ("a key twice is no object", call('{"x":1,"x":2}'), call('{"x":1, "x":2}'), False, False),
    ("a list is no object", call("[]"), call("[ ]"), False, False),
    ("a number is no object", call("1"), call("1.0"), False, False),
    ("NaN is no JSON", call('{"v":NaN}'), call('{"v": NaN}'), False, False),
    ("no arguments are not empty ones", call(ABSENT), call("{}"), False, False),
    ("another id", call(id="call-A"), call(id="call-B"), False, False),
    (
        "no id and id null",
        call(id=None),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "lookup", "arguments": "{}"}}],
        },
        False,
        False,
    ),
    ("another type", call(), call(type="custom"), False, False),
    ("another field of the call", call(), call(extra=1), False, False),
    ("another number of calls", call(), {"role": "assistant", "content": ""}, False, False),
    ("reasoning kept and dropped", {**call(), "reasoning_content": "kept"}, call(), False, False),
    ("too deep to read", call(NESTED), call(NESTED + " "), False, False),
]


@pytest.mark.parametrize(
    ("stored", "replayed", "is_strict", "is_loose"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_matchers_agree_with_the_table(
    stored: Any,
    replayed: Any,
    is_strict: Any,
    is_loose: Any,
) -> None:
    """Each row is a way in which real harnesses rewrite what the model said.

    Deep nesting must end in False, not in an exception: a recursion error here would kill the
    session actor for everybody.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(500)
    try:
        for left, right in ((stored, replayed), (replayed, stored)):
            assert strict(left, right) == is_strict
            assert loose_tool_call(left, right) == is_loose
            assert role_content_only(left, right)
    finally:
        sys.setrecursionlimit(limit)


def test_another_function_name_or_field_is_another_call() -> None:
    """The name is what is executed; an unknown field of a function may matter to somebody."""
    other = call()
    other["tool_calls"][0]["function"]["name"] = "delete"
    assert not strict(call(), other)
    assert not loose_tool_call(call(), other)
    other = call()
    other["tool_calls"][0]["function"]["strict"] = True
    assert not loose_tool_call(call(), other)


@pytest.mark.parametrize("left", [ABSENT, None, "", []])
@pytest.mark.parametrize("right", [ABSENT, None, "", []])
def test_every_kind_of_empty_content_is_the_same(left: Any, right: Any) -> None:
    """Clients write a missing text in four ways."""
    assert all(matcher(content(left), content(right)) for matcher in MATCHERS.values())


@pytest.mark.parametrize(("left", "right"), [("a", "a "), ("a", "A"), ("a", None), ("a", ["a"])])
def test_content_is_compared_to_the_letter(left: Any, right: Any) -> None:
    """No trimming and no case folding: another text is another history."""
    assert not any(matcher(content(left), content(right)) for matcher in MATCHERS.values())


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "{}", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
messages = st.builds(
    lambda role, text, arguments: {
        "role": role, "content": text,
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    },
    st.sampled_from(["user", "assistant"]), st.sampled_from(["", "a"]),
    values | values.map(json.dumps),
)  # fmt: skip


@given(messages, messages)
def test_each_matcher_contains_the_stricter_one_and_changes_nothing(left: Any, right: Any) -> None:
    """A looser matcher that refuses what a stricter one takes would be a trap."""
    before = copy.deepcopy((left, right))
    verdicts = [matcher(left, right) for matcher in (strict, loose_tool_call, role_content_only)]
    assert verdicts == sorted(verdicts)
    assert (left, right) == before
    assert strict(left, copy.deepcopy(left))


def only_roles(stored: dict[str, Any], replayed: dict[str, Any]) -> bool:
    """A matcher of the user's own."""
    return bool(stored["role"] == replayed["role"])


def not_a_verdict(stored: dict[str, Any], replayed: dict[str, Any]) -> Any:
    """A matcher that breaks its contract."""
    return {**stored, **replayed}


def test_a_matcher_of_ones_own_is_named_by_its_import_path() -> None:
    """And what is no matcher is refused before the run starts."""
    matcher = resolve_matcher(f"{__name__}:only_roles")
    assert matcher({"role": "user"}, {"role": "user", "content": "other"})
    assert resolve_matcher("strict") is strict
    with pytest.raises(ValueError, match=r"unknown matcher 'Strict'.*known are strict"):
        resolve_matcher("Strict")
    with pytest.raises(ValueError, match="no synchronous function"):
        resolve_matcher(f"{__name__}:nothing")
    with pytest.raises(TurnRefused, match="True or False is needed"):
        resolve_matcher(f"{__name__}:not_a_verdict")({"role": "a"}, {"role": "b"})
