"""Clients as they come from the registries speak to the HTTP door, and get what was sampled.

Python's clients are developers' dependencies, but for litellm, which has an environment of its own;
those of npm are fetched, so their test needs the network.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from proc.session_process import Scene, session_process, write_small_model
from proc.test_session_http import CALL, DEADLINE_S, saying

from milepost.actors.arrays import from_bulk
from milepost.actors.session.text.tokenizer import Tokenizer, load_tokenizer
from milepost.configs.actors import HttpConfig
from milepost.configs.recipes.lookup.directory import TOOLS

pytestmark = pytest.mark.timeout(110)

FUNCTION = TOOLS[0]["function"]
QUESTION = "What is the pet of kai?"
SAID = [f"<think>\nhm\n</think>\n\nLet me look.\n{CALL}\n{CALL}", "cat", "cat"]
NODE = Path(__file__).parent / "http_clients.mjs"
LITELLM = os.environ.get("MILEPOST_CLIENTS_PYTHON", "")
"""An interpreter that has litellm, whose dependencies are none of ours (`make test-clients`)."""
SCRIPT = Path(__file__).parent / "http_litellm.py"
NODE_PACKAGES = ("openai@6", "@anthropic-ai/sdk@0")

Play = Callable[[str, str], Awaitable[None]]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    write_small_model(tmp_path)
    async with session_process(tmp_path, http=HttpConfig()) as scene:
        yield scene


@pytest.fixture
def tokenizer(tmp_path: Path, scene: Scene) -> Tokenizer:
    del scene
    return load_tokenizer(tmp_path)


async def opened(scene: Scene) -> str:
    """Address of a new session."""
    aiohttp = importlib.import_module("aiohttp")
    url = scene.facts["http"]
    async with aiohttp.ClientSession() as client, client.post(f"{url}/sessions") as response:
        return f"{url}/sessions/{(await response.json())['session_id']}"


async def test_openai_chats_streams_and_is_told_what_it_cannot_have(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    """Tools in parallel, reasoning, a stream, and an error that names its field."""
    openai: Any = importlib.import_module("openai")
    saying(scene, tokenizer, *SAID)
    address = await opened(scene)
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", timeout=DEADLINE_S)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    create = client.chat.completions.create
    first = await create(model="m", messages=messages, tools=TOOLS, max_tokens=200)
    message = first.choices[0].message
    assert message.reasoning_content == "hm"
    assert first.choices[0].finish_reason == "tool_calls"
    messages.append(message.model_dump())
    for call in message.tool_calls:
        assert json.loads(call.function.arguments) == {"name": "kai", "field": "pet"}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "cat"})
    stream = await create(
        model="m", messages=messages, tools=TOOLS, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "cat"
    assert chunks[-1].usage.completion_tokens > 0
    with pytest.raises(openai.BadRequestError) as caught:
        await create(model="m", messages=messages, tools=TOOLS, temperature=0.1)
    assert "temperature = 0.1" in caught.value.body
    await client.close()


async def test_openai_responses_go_on_with_their_own_items(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    """The client keeps the items: what it sends back must be the stored conversation."""
    openai: Any = importlib.import_module("openai")
    saying(scene, tokenizer, *SAID)
    address = await opened(scene)
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", timeout=DEADLINE_S)
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    async with client.responses.stream(model="m", input=items, tools=tools) as stream:
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    items += [item.model_dump(exclude_none=True) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "cat"} for call in calls
    ]
    assert len(calls) == 2
    second = await client.responses.create(model="m", input=items, tools=tools)
    assert second.output_text == "cat"
    assert second.status == "completed"
    await client.close()


async def test_openai_responses_go_on_by_their_id_alone(scene: Scene, tokenizer: Tokenizer) -> None:
    """The session has the history: the same prompt, sampled from the same row, as with all items.
    Whoever forks from an earlier response is told that a linear session cannot."""
    openai: Any = importlib.import_module("openai")
    asked = saying(scene, tokenizer, CALL, "cat", "dog")
    address = await opened(scene)
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", timeout=DEADLINE_S)
    create = client.responses.create
    fields = {"model": "m", "tools": [{"type": "function", **t["function"]} for t in TOOLS]}
    first = await create(input=QUESTION, instructions="Be brief.", **fields)
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "cat"}
    second = await create(
        input=[output], previous_response_id=first.id, instructions="Be brief.", **fields
    )
    assert (second.output_text, second.previous_response_id) == ("cat", first.id)
    row = from_bulk(asked[0].token_ids).tolist() + tokenizer.encode(f"{CALL}<|im_end|>").tolist()
    assert from_bulk(asked[1].token_ids).tolist()[: len(row)] == row
    with pytest.raises(openai.BadRequestError, match="instructions are not carried over"):
        await create(input="and?", previous_response_id=second.id, **fields)
    again = {"instructions": "Be brief.", "store": False, **fields}
    third = await create(input="and?", previous_response_id=second.id, **again)
    assert third.output_text == "dog"
    with pytest.raises(openai.BadRequestError, match="store = false"):
        await create(input="and?", previous_response_id=third.id, **again)
    with pytest.raises(openai.BadRequestError, match="would discard 2 turns"):
        await create(input="no", previous_response_id=first.id, **again)
    await client.close()


async def test_anthropic_uses_tools_thinks_streams_and_counts(
    scene: Scene, tokenizer: Tokenizer
) -> None:
    """Parsed arguments come back, and are still the history that was sampled."""
    anthropic: Any = importlib.import_module("anthropic")
    asked = saying(scene, tokenizer, *SAID)
    client = anthropic.AsyncAnthropic(base_url=await opened(scene), api_key="x", timeout=DEADLINE_S)
    tools = [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    fields = {"model": "m", "tools": tools}
    counted = await client.messages.count_tokens(messages=messages, **fields)
    stream_of = client.messages.stream
    async with stream_of(messages=messages, max_tokens=200, **fields) as stream:
        first = await stream.get_final_message()
    assert counted.input_tokens == asked[0].token_ids.shape[0]
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert first.content[0].signature, "clients leave out reasoning without one"
    assert first.stop_reason == "tool_use"
    assert first.content[2].input == {"name": "kai", "field": "pet"}
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "cat"}
        for block in first.content
        if block.type == "tool_use"
    ]
    said = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    messages += [said, {"role": "user", "content": results}]
    second = await client.messages.create(messages=messages, max_tokens=50, **fields)
    assert second.content[0].text == "cat"
    assert second.stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        await client.messages.create(
            messages=messages, max_tokens=5, stop_sequences=["x"], **fields
        )
    await client.close()


@pytest.mark.network
async def test_clients_from_npm_do_the_same(
    scene: Scene, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """JavaScript's clients parse streams by code of their own."""
    if "MILEPOST_NETWORK" not in os.environ or shutil.which("npm") is None:
        pytest.skip("MILEPOST_NETWORK is not set, or there is no npm")
    saying(scene, tokenizer, SAID[0], SAID[1], SAID[0], SAID[0])
    folder = tmp_path / "node"
    folder.mkdir()
    shutil.copy(NODE, folder)
    fetched = Path(os.environ.get("MILEPOST_NODE_MODULES", ""))
    if fetched.name == "node_modules":
        (folder / "node_modules").symlink_to(fetched)
    else:
        await _run("npm", "install", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=folder)
    addresses = [await opened(scene) for _ in range(3)]
    told = await _run("node", NODE.name, *addresses, cwd=folder)
    assert told.split() == ["chat", "responses", "messages"]


@pytest.mark.skipif(not LITELLM, reason="MILEPOST_CLIENTS_PYTHON is not set: no litellm")
async def test_litellm_speaks_both_forms_and_streams(scene: Scene, tokenizer: Tokenizer) -> None:
    """Many harnesses stand on it: it puts fields of its own into messages, and takes vendors' words
    apart and together again."""
    saying(scene, tokenizer, SAID[0], SAID[1], SAID[0], SAID[1])
    addresses = [await opened(scene) for _ in range(2)]
    # It would ask the network for prices while it is imported.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    told = await _run(
        LITELLM, "-P", str(SCRIPT), *addresses, cwd=SCRIPT.parent, environment=environment
    )
    assert told.split() == ["chat", "messages"]


async def _run(*command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=pipe, stderr=pipe, env=environment
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return out.decode()
