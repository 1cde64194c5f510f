"""What a client may not send is refused with its name."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.validation import (
    SERVER_FIELDS,
    UNCARRIED,
    check_messages,
    check_tools,
    refuse_server_fields,
)


@pytest.mark.parametrize("field", sorted(SERVER_FIELDS))
def test_token_fields_are_the_server_s(field: str) -> None:
    """Silently overwriting them would hide a client that believes it chose the tokens."""
    with pytest.raises(TurnRefused, match=rf"messages\[1\] carries {field}") as refused:
        check_messages([{"role": "user", "content": "a"}, {"role": "user", field: [1]}])
    assert refused.value.kind == "bad_request"
    with pytest.raises(TurnRefused, match=f"the request carries {field}"):
        refuse_server_fields({"model", field}, "the request")


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages are empty"),
        ([{"content": "a"}], r"messages\[0\] has role None"),
        ([{"role": "robot", "content": "a"}], "has role 'robot', known are assistant"),
        ([{"role": ["user"], "content": "a"}], r"has role \['user'\], known are assistant"),
        ([{"role": {"user": 1}, "content": "a"}], "has role {'user': 1}"),
        ([{"role": "assistant", "reasoning_content": ["a"]}], "reasoning_content is list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
            r"tool_calls\[0\].function.arguments is list",
        ),
        ([{"role": "user", "content": 3}], "content is int"),
        ([{"role": "user", "content": {"text": "a"}}], "content is dict"),
        ([{"role": "user", "content": ["a"]}], r"content\[0\] is of type str"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            r"content\[0\] is of type image_url: only text is carried",
        ),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls is no list"),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f"}]}],
            r"tool_calls\[0\] has no function",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_place(messages: Any, told: str) -> None:
    """The client can repair it: index, field and value are in the text."""
    with pytest.raises(TurnRefused, match=told):
        check_messages(messages)


@pytest.mark.parametrize("field", sorted(UNCARRIED))
def test_what_the_model_would_not_see_is_refused(field: str) -> None:
    """Left out without a word, an image is a question about nothing, and a call an empty reply."""
    asked = {"role": "user", "content": "a"}
    with pytest.raises(TurnRefused, match=rf"messages\[1\] carries {field}: ") as refused:
        check_messages([asked, {"role": "assistant", "content": None, field: {"id": "x"}}])
    assert refused.value.kind == "bad_request"


def test_what_clients_send_back_of_a_reply_passes() -> None:
    """OpenAI's clients write out what they read, with fields that say nothing and labels."""
    reply: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    asked: dict[str, Any] = {"role": "user", "content": "a", "name": "x", "images": []}
    assert check_messages([asked, reply]) == [asked, reply]


def test_text_parts_are_one_text_and_nothing_else_changes() -> None:
    """Both ways to write a text are the same message, so that a client may change its mind."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts, "name": "x"}
    assert check_messages([message]) == [{"role": "user", "content": "ab", "name": "x"}]
    assert message["content"] is parts
    plain = {"role": "assistant", "content": None, "tool_calls": None}
    assert check_messages([plain])[0] is plain


def test_a_message_that_was_checked_before_is_taken_as_it_is() -> None:
    """Agents send the whole conversation each turn; what differs is looked at from there on."""
    asked = {"role": "user", "content": "a", "name": "x"}
    said = {"role": "assistant", "content": "b"}
    known = check_messages([asked, said])
    again = check_messages([dict(asked), dict(said), {"role": "tool", "content": "c"}], known)
    assert again == [asked, said, {"role": "tool", "content": "c"}]
    assert again[0] is not asked, "the request's own spelling goes on"
    with pytest.raises(TurnRefused, match=r"messages\[2\] has role 'robot'"):
        check_messages([asked, said, {"role": "robot"}], known)
    with pytest.raises(TurnRefused, match=r"messages\[1\] carries token_ids"):
        check_messages([asked, {**said, "token_ids": [1]}], known)
    # Nothing behind the first difference counts as known, however alike.
    with pytest.raises(TurnRefused, match="messages are empty"):
        check_messages([], known)
    assert check_messages([said], known) == [said]


def test_tools_need_a_name() -> None:
    """A template would render a tool without one as nothing."""
    check_tools([{"type": "function", "function": {"name": "f"}}, {"name": "g"}])
    for tool in ({"type": "function"}, {"function": {"name": 1}}, "f"):
        with pytest.raises(TurnRefused, match=r"tools\[0\] has no function with a name"):
            check_tools([tool])


@pytest.mark.parametrize("schema", [5, "x", [1], True, {"properties": [1]}, {"properties": 5}])
def test_tools_have_objects_where_types_of_arguments_are_looked_up(schema: object) -> None:
    """Who reads a call under such a tool would fail, and with it everybody's conversations."""
    with pytest.raises(TurnRefused, match=r"tools\[0\].function.parameters.* an object is taken"):
        check_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    for fits in (None, {}, {"properties": None}, {"properties": {"a": True}}):
        check_tools([{"type": "function", "function": {"name": "f", "parameters": fits}}])
