"""The short way out of the HTTP door says what the library's way says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from milepost.actors.session.http.answers import JSON
from milepost.actors.session.http.whole import Whole

BODY = b'{"said":"an owl"}'


async def _handle(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    if request.path == "/library":
        return web.Response(body=BODY, content_type=JSON)
    answer = Whole(BODY, received=lambda: None)
    if request.path == "/last":
        answer.force_close()
    return answer


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server with both ways."""
    server = web.Server(_handle)
    listener = socket.create_server(("127.0.0.1", 0))
    listening = await asyncio.get_running_loop().create_server(server, sock=listener)
    yield listener.getsockname()[1]
    listening.close()
    await server.shutdown(1.0)


async def _asked(port: int, path: str, version: str, connection: str) -> tuple[set[bytes], bytes]:
    """Head and body of the second answer on a connection, or of the first when it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    header = f"Connection: {connection}\r\n" if connection else ""
    request = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: 2\r\n{header}\r\n{{}}"
    heads = 0
    try:
        while True:
            writer.write(request.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            length = next(int(line[15:]) for line in head if line.startswith(b"Content-Length:"))
            body = await reader.readexactly(length)
            heads += 1
            lines = {line for line in head if not line.startswith(b"Date:")}
            assert len(lines) < len(head) - 1, "there is a date"
            if heads == 2:
                return lines, body
            if reader.at_eof() or b"Connection: close" in lines or await _ends(reader, version):
                return lines | {b"the connection ends"}, body
    finally:
        writer.close()


async def _ends(reader: asyncio.StreamReader, version: str) -> bool:
    """Whether a connection of HTTP/1.0 is closed after its answer, as it is unless asked not to."""
    return version == "1.0" and await reader.read(1) == b""


@pytest.mark.parametrize(
    ("version", "connection"),
    [("1.1", ""), ("1.1", "keep-alive"), ("1.1", "close"), ("1.0", "")],
)
async def test_head_body_and_what_becomes_of_the_connection_are_the_library_s(
    port: int, version: str, connection: str
) -> None:
    """A client that pools connections must not be told one thing and meet another."""
    ours = await _asked(port, "/ours", version, connection)
    assert ours == await _asked(port, "/library", version, connection)
    assert ours[1] == BODY


async def test_an_old_client_that_wants_to_stay_is_told_that_it_may(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b"POST /ours HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}"
    for _ in range(2):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: keep-alive\r\n" in head
        assert await reader.readexactly(len(BODY)) == BODY
    writer.close()


async def test_an_answer_that_must_be_the_last_one_closes_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /last HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    told = await reader.read()
    assert b"Connection: close\r\n" in told
    assert told.endswith(BODY)
    writer.close()
