"""The HTTP door of a real session actor, spoken to over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from proc.session_process import Scene, generated, session_process, spec, write_small_model
from safetensors.numpy import load

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.session.text.tokenizer import Tokenizer, load_tokenizer
from milepost.configs.actors import HttpConfig
from milepost.configs.recipes.lookup.directory import TOOLS
from milepost.messages.engine import AbortRequests, Generate
from milepost.messages.session import (
    FinishTrajectory,
    GeneratedPart,
    OpenSessions,
    SessionsOpened,
    TrajectorySent,
)
from milepost.messages.shared import Message, Status

pytestmark = pytest.mark.timeout(60)

CALL = '<tool_call>\n{"name": "lookup", "arguments": {"name": "kai", "field": "pet"}}\n</tool_call>'
TWO = f"Let me look.\n{CALL}\n{CALL}"
USER = {"role": "user", "content": "What is the pet of kai?"}
DEADLINE_S = 30.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with tokenizer and template."""
    write_small_model(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(model: Path) -> Tokenizer:
    return load_tokenizer(model)


@pytest.fixture
async def scene(model: Path) -> AsyncIterator[Scene]:
    async with session_process(model, http=HttpConfig()) as scene:
        yield scene


@pytest.fixture
async def client(scene: Scene) -> AsyncIterator[aiohttp.ClientSession]:
    url = str(scene.facts["http"])
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(DEADLINE_S)) as client:
        yield client


def saying(scene: Scene, tokenizer: Tokenizer, *texts: str) -> list[Generate]:
    """Let the engine say these texts in turn; in parts of 5 tokens where it is asked to stream."""
    asked: list[Generate] = []

    def engine(request: Generate) -> Message:
        said = tokenizer.encode(texts[len(asked) % len(texts)] + "<|im_end|>")
        asked.append(request)
        if request.stream:
            for start in range(0, len(said) - 1, 5):
                part = GeneratedPart(
                    request_id=request.request_id,
                    start=start,
                    token_ids=to_bulk(said[start : start + 5]),
                )
                scene.buses["engine-0"].tell("session-0", part, deadline_s=DEADLINE_S)
        return generated(request, said)

    scene.engine = engine
    return asked


async def opened(client: aiohttp.ClientSession) -> str:
    async with client.post("/sessions") as response:
        assert response.status == 200
        return str((await response.json())["session_id"])


async def post(
    client: aiohttp.ClientSession, path: str, body: Any, status: int = 200
) -> dict[str, Any]:
    async with client.post(path, json=body) as response:
        told: dict[str, Any] = await response.json()
        assert response.status == status, told
        return told


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_a_client_opens_a_session_chats_and_fetches_the_row_it_made(
    scene: Scene, client: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    """The shapes that agents written against other session servers rely on."""
    asked = saying(scene, tokenizer, CALL, "cat")
    session = await opened(client)
    path = f"/sessions/{session}/v1/chat/completions"
    body = {"model": "m", "messages": [USER], "tools": TOOLS, "max_tokens": 50}
    first = await post(client, path, body)
    (choice,) = first["choices"]
    assert choice["finish_reason"] == "tool_calls"
    call = choice["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"name": "kai", "field": "pet"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "cat"}
    second = await post(
        client, path, {**body, "messages": [USER, choice["message"], result], "stream": False}
    )
    assert second["choices"][0]["message"]["content"] == "cat"
    assert second["choices"][0]["finish_reason"] == "stop"
    prompts = [from_bulk(request.token_ids).tolist() for request in asked]
    row = prompts[1] + tokenizer.encode("cat<|im_end|>").tolist()
    assert row[: len(prompts[0])] == prompts[0]
    async with client.post(f"/sessions/{session}/samples", json={}) as response:
        assert response.content_type == "application/octet-stream"
        tensors = load(await response.read())
    assert tensors["tokens.0"].tolist() == row
    meta = json.loads(tensors["_samples_meta"].tobytes())
    assert meta["samples"][0]["status"] == "completed"
    assert meta["session_metadata"]["tito_session_mismatch"] == []
    assert len(tensors["loss_mask.0"]) == len(row) - len(prompts[0])
    assert tensors["rollout_log_probs.0"].dtype == np.float64
    async with client.get(f"/sessions/{session}") as response:
        told = await response.json()
    assert [each["status_code"] for each in told["records"]] == [200, 200]
    assert told["records"][1]["request"]["input_ids"] == prompts[1]
    async with client.delete(f"/sessions/{session}") as response:
        assert response.status == 204
    await post(client, path, body, 404)


async def _chat(client: aiohttp.ClientSession, path: str, *, stream: bool) -> str:
    body = {"messages": [USER], "tools": TOOLS, "stream": stream}
    if path == "responses":
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        body = {"input": [USER], "tools": tools, "stream": stream}
    if path == "messages":
        tools = [
            {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
            for tool in TOOLS
        ]
        body = {"messages": [USER], "tools": tools, "stream": stream, "max_tokens": 200}
    session = await opened(client)
    async with client.post(f"/sessions/{session}/v1/{path}", json=body) as response:
        text = await response.text()
        assert response.status == 200, text
        if stream:
            assert response.content_type == "text/event-stream"
    async with client.get(f"/sessions/{session}") as response:
        row = (await response.json())["metadata"]["accumulated_token_ids"]
    return f"{row}|{_said(path, text, stream=stream)}"


def _said(path: str, text: str, *, stream: bool) -> str:
    """Text and calls of a reply, however it came."""
    if not stream:
        body = json.loads(text)
        if path == "responses":
            texts = [i["content"][0]["text"] for i in body["output"] if i["type"] == "message"]
            calls = [i["arguments"] for i in body["output"] if i["type"] == "function_call"]
        elif path == "messages":
            texts = [b["text"] for b in body["content"] if b["type"] == "text"]
            calls = [json.dumps(b["input"]) for b in body["content"] if b["type"] == "tool_use"]
        else:
            message = body["choices"][0]["message"]
            texts = [message["content"]]
            calls = [call["function"]["arguments"] for call in message["tool_calls"]]
        return f"{''.join(texts)}|{calls}"
    events = events_of(text)
    if path == "responses":
        texts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        kind = "response.function_call_arguments.done"
        calls = [e["arguments"] for e in events if e["type"] == kind]
        numbers = [e["sequence_number"] for e in events]
        assert numbers == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
    elif path == "messages":
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        texts = [d["text"] for d in deltas if d["type"] == "text_delta"]
        calls = [d["partial_json"] for d in deltas if d["type"] == "input_json_delta"]
        assert events[-1]["type"] == "message_stop"
    else:
        deltas = [e["choices"][0]["delta"] for e in events]
        texts = [d["content"] for d in deltas if d.get("content")]
        calls = [c["function"]["arguments"] for d in deltas for c in d.get("tool_calls", ())]
        assert text.endswith("data: [DONE]\n\n")
    return f"{''.join(texts)}|{calls}"


async def test_a_streamed_reply_has_the_ids_and_words_of_the_whole_one(
    scene: Scene, client: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    """Parallel tool calls and text, in each dialect; what trains is the same row."""
    saying(scene, tokenizer, TWO)
    for path in ("chat/completions", "responses", "messages"):
        whole = await _chat(client, path, stream=False)
        assert await _chat(client, path, stream=True) == whole
        assert whole.count("kai") >= 2
        assert "Let me look." in whole


async def test_an_episode_of_the_run_is_reached_by_its_address_alone(
    scene: Scene, client: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    """Its name is known to many; what it says must come from whoever was given the address."""
    saying(scene, tokenizer, "cat")
    answer = await scene.ask("rollout", OpenSessions(sessions=(spec("g0.0"),)))
    assert isinstance(answer, SessionsOpened)
    (address,) = answer.addresses
    body = {"messages": [USER]}
    await post(client, "/sessions/g0.0/v1/chat/completions", body, 404)
    told = await post(client, f"{address}/v1/chat/completions", body)
    assert told["choices"][0]["message"]["content"] == "cat"
    async with client.delete(address) as response:
        assert response.status == 409
    verdict = FinishTrajectory(trajectory_id="g0.0", attempt=0, status=Status.COMPLETED, reward=1.0)
    assert isinstance(await scene.ask("rollout", verdict), TrajectorySent)
    await post(client, f"{address}/v1/chat/completions", body, 404)
    answer = await scene.ask("rollout", OpenSessions(sessions=(spec("g0.0"),)))
    assert isinstance(answer, SessionsOpened)
    assert answer.addresses == (address,)


async def test_a_dead_client_stops_its_generation(
    scene: Scene, client: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    """Tokens that nobody will read are not sampled to their end, and the session goes on."""
    started, stopped = asyncio.Event(), asyncio.Event()
    requests: list[Generate] = []

    def engine(request: Generate) -> Message | None:
        requests.append(request)
        started.set()
        return None

    def aborted(message: AbortRequests) -> None:
        assert message.request_ids == (requests[0].request_id,)
        stopped.set()

    scene.engine, scene.aborted = engine, aborted
    session = await opened(client)
    path = f"/sessions/{session}/v1/chat/completions"
    chat = asyncio.create_task(client.post(path, json={"messages": [USER]}).__aenter__())
    await started.wait()
    chat.cancel()
    await stopped.wait()
    saying(scene, tokenizer, "cat")
    told = await post(client, path, {"messages": [USER]})
    assert told["choices"][0]["message"]["content"] == "cat"


REFUSED: list[tuple[str, Any]] = [
    ("input_ids", [1, 2]),
    ("return_logprob", True),
    ("logprobs", True),
    ("routed_experts_start_len", 4),
    ("temperature", 0.3),
    ("n", 2),
    ("stop", ["x"]),
    ("tool_choice", "required"),
    ("reasoning_effort", "high"),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("response_format", {"type": "json_object"}),
    ("mystery", 1),
    ("max_tokens", 0),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]),
]


async def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(
    scene: Scene, client: aiohttp.ClientSession, tokenizer: Tokenizer
) -> None:
    """Silently ignored, each of these would train on something else than was meant."""
    saying(scene, tokenizer, "cat")
    session = await opened(client)
    path = f"/sessions/{session}/v1/chat/completions"
    for field, value in REFUSED:
        told = await post(client, path, {"messages": [USER], field: value}, 400)
        assert field in told["error"]
    neutral = {"logprobs": False, "n": 1, "temperature": 1.0, "top_p": None, "user": "somebody"}
    await post(client, path, {"messages": [USER], **neutral})


async def test_the_door_bounds_what_comes_in(
    model: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """A body too large, a path unknown, a key missing: each has its status."""
    key = tmp_path / "key"
    key.write_text("secret\n")
    config = HttpConfig(body_bytes_max=2000, key_file=str(key))
    async with session_process(model, http=config) as scene:
        saying(scene, tokenizer, "cat")
        async with aiohttp.ClientSession(str(scene.facts["http"])) as client:
            async with client.get("/health") as response:
                assert await response.json() == {"status": "ok"}
            await post(client, "/sessions", None, 401)
            headers = {"Authorization": "Bearer secret"}
            async with client.post("/sessions", headers=headers) as response:
                session = (await response.json())["session_id"]
            path = f"/sessions/{session}/v1/chat/completions"
            await post(client, path, {"messages": [{"role": "user", "content": "x" * 3000}]}, 413)
            await post(client, f"/sessions/{session}/v1/audio", {}, 404)
            await post(client, path, [1], 400)
            async with client.get(path) as response:
                assert response.status == 405
