"""What the tools of a request may ask for, and what the topology lets them ask for in vain."""

from __future__ import annotations

from typing import Any

import pytest
from unit.session.http.test_reading import BODIES, read

from milepost.actors.session.refusal import TurnRefused

CHAT, RESPONSES, ANTHROPIC = range(3)


def with_fields(dialect: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The body of a dialect, its one tool with these fields where that dialect has them."""
    _, body = BODIES[dialect]
    (tool,) = body["tools"]
    if dialect == CHAT:
        return {**body, "tools": [{**tool, "function": {**tool["function"], **fields}}]}
    return {**body, "tools": [{**tool, **fields}]}


@pytest.mark.parametrize("dialect", [RESPONSES, ANTHROPIC])
def test_a_tool_that_only_the_model_calls_asks_for_nothing(dialect: int) -> None:
    """Clients write the default out; another caller there is none here."""
    asked = read(BODIES[dialect][0], with_fields(dialect, {"allowed_callers": ["direct"]}))
    assert asked.tools == read(*BODIES[dialect]).tools
    for callers in (["programmatic"], ["direct", "code_execution_20260120"]):
        with pytest.raises(TurnRefused, match=r"tools\[0\]\.allowed_callers = "):
            read(BODIES[dialect][0], with_fields(dialect, {"allowed_callers": callers}))


@pytest.mark.parametrize("name", ["strict", "defer_loading", "output_schema", "input_examples"])
@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, ANTHROPIC])
def test_a_field_of_tools_can_be_dropped_by_the_topology(dialect: int, name: str) -> None:
    """A harness whose code nobody can change may ask for what it never misses."""
    body = with_fields(dialect, {name: [{"a": 1}] if name == "input_examples" else True})
    asked = read(BODIES[dialect][0], body, (f"tools.{name}",))
    assert asked.tools == read(*BODIES[dialect]).tools
    if dialect == CHAT:
        assert name in read(BODIES[dialect][0], body, ("tools.other",)).tools[0]["function"]
        return
    told = rf"tools\[0\]\.{name} = .*dropped_fields = \[\"tools\.{name}\"\]"
    with pytest.raises(TurnRefused, match=told):
        read(BODIES[dialect][0], body, ("tools.other", name))


def test_a_field_beside_the_function_of_a_tool_can_be_dropped_too() -> None:
    """Chat Completions hands a tool to the template as it is: it would stand in the prompt."""
    _, body = BODIES[CHAT]
    body = {**body, "tools": [{**body["tools"][0], "defer_loading": True}]}
    assert read(BODIES[CHAT][0], body, ("tools.defer_loading",)).tools == read(*BODIES[CHAT]).tools
