"""Bare values of calls get the types that the tool's schema lets them have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milepost.actors.session.families.calls import CallContext, glm_call

TEXT_OR_NOTHING = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def argument(schema: Any, written: str) -> Any:
    """The value of one argument, written without its type."""
    tool = {"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}
    body = f"f<arg_key>a</arg_key><arg_value>{written}</arg_value>"
    calls = glm_call(body, 0, CallContext(0, [tool]))
    assert calls is not None
    return json.loads(calls[0].arguments)["a"]


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "7", 7),
        ({"type": ["integer", "null"]}, "null", None),
        (TEXT_OR_NOTHING, "7", "7"),
        (TEXT_OR_NOTHING, "true", "true"),
        (TEXT_OR_NOTHING, "[1]", "[1]"),
        (TEXT_OR_NOTHING, "null", None),
        ({"oneOf": TEXT_OR_NOTHING["anyOf"]}, "1e3", "1e3"),
        (TEXT_OR_LIST, '["x"]', ["x"]),
        (TEXT_OR_LIST, "7", "7"),
        ({"anyOf": [{"type": "integer"}, TEXT_OR_NOTHING]}, "7", "7"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/b"}]}, "7", 7),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"anyOf": 5, "enum": 5, "type": 5}, "7", 7),
        ({"anyOf": [5], "type": [5]}, "7", 7),
        (True, "7", 7),
        ({}, '"7"', '"7"'),
    ],
)
def test_a_value_is_of_a_type_that_its_schema_has(schema: Any, written: str, value: Any) -> None:
    """A text that looks like a number is refused by the tool when it arrives as one."""
    assert argument(schema, written) == value
