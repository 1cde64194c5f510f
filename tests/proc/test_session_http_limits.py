"""What a client does not do in time, or does too much of, costs it its connection and nobody else.

Agents run for days, on machines that sleep, behind proxies that buffer, in code that forgets to
read. None of them may hold the memory, the engine or the sockets of a run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

import pytest
from proc.session_door import Served, answer, closed, exchange, served
from unit.session.kit import QUESTION, aborts

from milepost.actors.session.http.lifecycle import Lifecycle
from milepost.configs.actors import HttpConfig

pytestmark = pytest.mark.timeout(60)

SOON_S = 0.05
CHAT = "v1/chat/completions"


async def opened(scene: Served) -> str:
    status, told = await exchange(scene, "Content-Length: 0\r\n")
    assert status == 200, told
    return str(json.loads(told)["session_id"])


def chat(session: str, body: bytes, head: str = "") -> bytes:
    """One whole request."""
    first = f"POST /sessions/{session}/{CHAT} HTTP/1.1\r\nHost: x\r\n{head}"
    return f"{first}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_a_client_that_does_not_read_is_cut_off_by_name_and_its_generation_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine would sample on, and the door keep every word, for a reader that left long ago."""
    body = json.dumps({"messages": [QUESTION], "stream": True}).encode()
    async with served(HttpConfig(write_s=SOON_S)) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        writer.write(chat(session, body))
        await scene.asked()
        scene.part("cat and dog " * 16_000)
        with caplog.at_level(logging.WARNING):
            await scene.until(lambda: bool(aborts(scene.game)))
        assert "its client read nothing for http.write_s = 0.05 s" in caplog.text
        assert scene.core.statistics()["clients_gone"] == 1
        assert scene.core.statistics()["http_requests_open"] == 0
        held = await reader.read()
        assert len(held) < 12 * 16_000, "the rest of the reply was never written"
        status, told = await exchange(scene, "Content-Length: 0\r\n")
        assert (status, "session_id" in told) == (200, True)


async def test_a_client_that_reads_in_time_gets_all_of_a_reply_that_is_larger_than_any_buffer() -> (
    None
):
    """Backpressure is no fault: the same reply, read as it comes."""
    text = "cat and dog " * 10_000
    body = json.dumps({"messages": [QUESTION], "stream": True}).encode()
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        writer.write(chat(session, body, "Connection: close\r\n"))
        await scene.asked()
        scene.part(text)
        scene.sample(text)
        told = await reader.read()
        assert told.rstrip().endswith(b"0")
        assert told.count(b"cat and dog ") == 10_000
        assert b"[DONE]" in told


@pytest.mark.parametrize(
    ("config", "length"),
    [(HttpConfig(idle_s=SOON_S), 30), (HttpConfig(body_s=SOON_S), None)],
    ids=["head", "body"],
)
async def test_a_request_that_does_not_arrive_is_cut_off(
    config: HttpConfig, length: int | None
) -> None:
    """One byte a minute holds a connection for ever, and a thousand of them all there are."""
    async with served(config) as scene:
        reader, writer = await scene.connect()
        whole = b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        writer.write(whole[:length])
        told = b""
        with contextlib.suppress(ConnectionError):
            told = await reader.read()
        assert told == b""


async def test_one_connection_too_many_is_told_so() -> None:
    """Sockets are finite: whoever comes last hears why, instead of waiting in a queue."""
    async with served(HttpConfig(connections_max=1)) as scene:
        first = await scene.connect()
        first[1].write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer(first[0]))[0] == 200
        reader, _ = await scene.connect()
        status, told = await answer(reader)
        assert (status, told) == (503, '{"error":"1 connections are open, the most there may be"}')
        assert await reader.read() == b""
        await closed(first[1])
        # The server hears of the end when it next looks: until then it says that it is full.
        while status == 503:
            status, _ = await exchange(scene, "Content-Length: 0\r\n")
        assert status == 200


async def test_a_client_that_asks_before_it_sends_is_told_to() -> None:
    """curl does so before a long body, and waits for a second when nobody answers."""
    body = json.dumps({"messages": [QUESTION]}).encode()
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        head, _, _ = chat(session, body, "Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        await scene.asked()
        scene.sample("cat")
        status, told = await answer(reader)
        assert (status, json.loads(told)["choices"][0]["message"]["content"]) == (200, "cat")


HEADS: list[tuple[str, bytes, int, str]] = [
    ("Content-Length: 3\r\nContent-Encoding: gzip\r\n", b"abc", 415, "gzip: send it plain"),
    ("Content-Length: 3\r\nExpect: miracles\r\n", b"abc", 417, "Expect: miracles"),
    ("Content-Length: 999999999999\r\n", b"abc", 413, "body_bytes_max = 1000"),
    ("Transfer-Encoding: chunked\r\n", b"fff\r\n" + b"x" * 4095 + b"\r\n0\r\n\r\n", 413, "1000"),
    ("Transfer-Encoding: chunked\r\n", b"no number\r\n\r\n", 400, ""),
    ("Content-Length: -1\r\n", b"", 400, ""),
    ("Content-Length: 3\r\nContent-Length: 4\r\n", b"abc", 400, ""),
    ("X: " + "y" * 9000 + "\r\n", b"", 400, ""),
]


@pytest.mark.parametrize(("head", "body", "status", "told"), HEADS)
async def test_what_the_door_does_not_take_is_refused_in_its_own_shape(
    head: str, body: bytes, status: int, told: str
) -> None:
    """`{"error": text}`, also for what never became a request: clients read it, and people."""
    async with served(HttpConfig(body_bytes_max=1000)) as scene:
        found, text = await exchange(scene, head, body)
        assert found == status, text
        assert told in json.loads(text)["error"]
        assert len(text) < 400


async def test_a_mistake_of_ours_is_an_error_in_the_same_shape_and_the_door_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log has the traceback; a client must not parse a page of HTML."""

    def broken(_: Any) -> Any:
        raise ValueError("a mistake")

    monkeypatch.setattr(Lifecycle, "models", broken)
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        writer.write(f"GET /sessions/{session}/v1/models HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, told = await answer(reader)
        assert status == 500
        assert json.loads(told) == {"error": "the session server failed, its log says how"}
        assert await reader.read() == b""
        assert await opened(scene) != session


BODIES: list[tuple[bytes, str]] = [
    (b'{"messages": [], "messages": []}', "messages stands twice"),
    (b'{"mess\\u0061ges": [1], "messages": []}', "messages stands twice"),
    (b'{"model": "a", "messages": [], "model" : "a" }', "model stands twice"),
    (b'{"messages": ' + b"[" * 100_000, "the body is no JSON object"),
    (b'{"messages": [{"role": "user", "x": ' + b"[" * 300 + b"]" * 300 + b"}]}", "100 deep"),
    (b'{"tools": ' + b'[{"a":' * 300 + b"1" + b"}]" * 300 + b"}", "tools is nested"),
    (b'{"messages": [{"role": "user", "content": "\\ud83d half"}]}', "JSON is malformed"),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', "messages[0]: "),
    (b'{"messages": [{"role": "user", "content": NaN}]}', "no JSON object"),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", "max_tokens: "),
    (b'{"max_tokens": 1e400}', "max_tokens: "),
    (b'{"messages": {}}', "messages: "),
    (b'{"messages": [[]]}', "messages[0]: "),
    (b"\xef\xbb\xbf{}", "no JSON object"),
    (b"", "no JSON object"),
]


@pytest.mark.parametrize(("body", "told"), BODIES)
async def test_a_body_beyond_reason_is_a_bad_request_by_name(body: bytes, told: str) -> None:
    """Twice the same field, brackets without end, halves of characters, numbers without end."""
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        head = f"Content-Length: {len(body)}\r\n"
        status, text = await exchange(scene, head, body, path=f"/sessions/{session}/{CHAT}")
        assert status == 400, text
        assert told in json.loads(text)["error"]
        assert not scene.game.asks


async def test_large_numbers_in_a_history_are_carried() -> None:
    """An integer beyond 64 bits is JSON like any other: it is rendered, never a failure."""
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {"n": 10**40}}}
    messages = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}, QUESTION]
    body = json.dumps({"messages": messages}).encode()
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        reader, writer = await scene.connect()
        writer.write(chat(session, body))
        await scene.asked()
        scene.sample("cat")
        assert (await answer(reader))[0] == 200


async def test_a_model_that_names_an_adapter_reaches_the_engine_as_one() -> None:
    """`name` or `policy:name`, as clients of SGLang write; a name nobody has is not found."""
    async with served(HttpConfig(), adapters=("terse",)) as scene:
        session = await opened(scene)
        body = {"model": "m:unheard", "messages": [QUESTION]}
        status, told = await exchange(
            scene,
            f"Content-Length: {len(json.dumps(body))}\r\n",
            json.dumps(body).encode(),
            path=f"/sessions/{session}/{CHAT}",
        )
        assert status == 404
        assert "no adapter" in told
        assert not scene.game.asks
        _, writer = await scene.connect()
        writer.write(chat(session, json.dumps({**body, "model": "m:terse"}).encode()))
        await scene.asked()
        assert scene.game.open_ask()[2].adapter == "terse"


async def test_a_reply_that_its_client_has_begun_is_refused_and_can_be_counted() -> None:
    """Anthropic's models go on from it; the policy would begin another message, unasked."""
    body = {"messages": [QUESTION, {"role": "assistant", "content": "The pet is"}], "max_tokens": 9}
    said = json.dumps(body).encode()
    async with served(HttpConfig()) as scene:
        session = await opened(scene)
        head, path = f"Content-Length: {len(said)}\r\n", f"/sessions/{session}/v1/messages"
        status, told = await exchange(scene, head, said, path=path)
        assert status == 400
        assert "its client has begun" in json.loads(told)["error"]["message"]
        assert not scene.game.asks
        status, told = await exchange(scene, head, said, path=f"{path}/count_tokens")
        assert status == 200, told
