"""What a door says of a session, and what it says when there is none, in every client's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from proc.session_door import answer, exchange, served
from proc.test_session_http_limits import opened
from unit.session.kit import QUESTION

from milepost.configs.actors import HttpConfig, TreeConfig

pytestmark = pytest.mark.timeout(60)

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [QUESTION]},
    "responses": {"input": [QUESTION]},
    "messages": {"messages": [QUESTION], "max_tokens": 9},
}


async def test_nodes_of_a_tree_have_the_ids_and_times_of_their_responses() -> None:
    """Whoever kept a response finds its generation by it, whatever it was asked in."""
    ids = []
    async with served(HttpConfig(), tree=TreeConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        for path, body in BODIES.items():
            said = json.dumps(body).encode()
            head = f"POST /sessions/{session}/v1/{path} HTTP/1.1\r\nHost: x\r\n"
            writer.write(f"{head}Content-Length: {len(said)}\r\n\r\n".encode() + said)
            await scene.asked()
            scene.sample(path)
            _, told = await answer(reader)
            ids.append(json.loads(told)["id"])
        writer.write(f"GET /sessions/{session} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        _, told = await answer(reader)
    shown = json.loads(told)
    nodes = shown["metadata"]["tree"]["nodes"]
    assert [node["response_id"] for node in nodes] == ids
    times = [node["committed_at"] for node in nodes]
    assert 0 < times[0] <= times[1] <= times[2]
    (record,) = shown["records"]
    assert times[1] <= record["request_timestamp"] <= record["timestamp"] == times[2]


def reason(path: str, told: str) -> str:
    """Where each dialect has its reason; nothing else may be there."""
    said = json.loads(told)
    if path == "chat/completions":
        assert said.keys() == {"error"}
        return str(said["error"])
    if path == "responses":
        assert said["error"].keys() == {"message", "type", "code", "param"}
        return str(said["error"]["message"])
    assert said["type"] == "error"
    assert said["error"].keys() == {"type", "message"}
    return str(said["error"]["message"])


@pytest.mark.parametrize("path", [*BODIES, "messages/count_tokens"])
async def test_the_door_s_own_refusals_are_in_the_words_of_the_path(path: str) -> None:
    """A client shows its user the reason, or only that there was an error of unknown kind."""
    large = "x" * 200
    async with served(HttpConfig(body_bytes_max=100)) as scene:
        session = await opened(scene)
        for key, head, body, status, told in (
            ("nope", "", "", 404, "session not found: nope"),
            (session, "Content-Length: 200\r\n", large, 413, "body_bytes_max = 100 bytes"),
            (session, "Content-Encoding: gzip\r\n", "", 415, "Content-Encoding gzip"),
            (session, "Expect: wonders\r\n", "", 417, "Expect: wonders"),
        ):
            at = f"/sessions/{key}/v1/{path}"
            got, text = await exchange(scene, head, body.encode(), path=at)
            assert got == status
            assert told in reason(path, text)


@pytest.mark.parametrize("path", BODIES)
async def test_a_full_door_says_so_in_the_words_of_the_path(path: str) -> None:
    """Clients that read it try again."""
    async with served(HttpConfig(requests_max=1)) as scene:
        session = await opened(scene)
        body = json.dumps(BODIES[path]).encode()
        head, at = f"Content-Length: {len(body)}\r\n", f"/sessions/{session}/v1/{path}"
        _, writer = await scene.connect()
        writer.write(f"POST {at} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
        await scene.asked()
        status, text = await exchange(scene, head, body, path=at)
        assert status == 503
        assert "1 requests are being answered" in reason(path, text)
