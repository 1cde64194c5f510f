"""Run by test_session_http_clients.py with an interpreter that has litellm: one conversation with
each of the two vendors' forms it can speak, one address each."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

QUESTION = "What is the pet of kai?"
PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "field": {"type": "string"}},
}
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": PARAMETERS}}]


def converse(litellm: Any, **place: Any) -> None:
    """Two calls of a tool, their results, and a streamed answer."""
    fields = {"api_key": "x", "tools": TOOLS, "max_tokens": 200, "num_retries": 0, **place}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = litellm.completion(messages=messages, **fields).choices[0]
    assert first.finish_reason == "tool_calls", first
    assert first.message.reasoning_content == "hm", first
    calls = first.message.tool_calls
    assert [json.loads(each.function.arguments) for each in calls] == [
        {"name": "kai", "field": "pet"}
    ] * 2, first
    messages.append(first.message)
    messages += [{"role": "tool", "tool_call_id": each.id, "content": "cat"} for each in calls]
    chunks = list(litellm.completion(messages=messages, stream=True, **fields))
    whole = litellm.stream_chunk_builder(chunks, messages=messages)
    assert whole.choices[0].message.content == "cat", chunks
    status = 0
    try:
        litellm.completion(messages=messages, temperature=0.1, **fields)
    except litellm.BadRequestError as error:
        status = error.status_code  # of the door's words litellm passes on those of one form only
    assert status == 400, "another temperature than the run's was taken"


def main() -> None:
    """As the test says."""
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    chat, messages = sys.argv[1:]
    converse(litellm, model="openai/policy", api_base=f"{chat}/v1")
    print("chat")  # noqa: T201
    converse(litellm, model="anthropic/claude-policy", api_base=messages)
    print("messages")  # noqa: T201


if __name__ == "__main__":
    main()
