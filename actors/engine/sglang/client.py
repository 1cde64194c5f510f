"""The server's doors: JSON over HTTP, on this host."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import orjson

BYTES_MAX: Final = 1 << 30
"""Of one answer."""
CONNECT_S: Final = 10.0
ERROR_CHARS: Final = 600
LINE_BYTES: Final = 1 << 24
"""Of one piece of a streamed answer: it repeats all log-probs before it."""
JSON: Final = {"Content-Type": "application/json"}


class ServerError(RuntimeError):
    """The server answered that it cannot; status 400 is the request's fault."""

    def __init__(self, door: str, status: int, text: str) -> None:
        super().__init__(f"{door} answered {status}: {text}")
        self.status = status
        self.text = text


class ServerGoneError(RuntimeError):
    """The server did not answer: no connection, a broken one, or the deadline passed."""


class Client:
    """One server, many requests at once. Made on the event loop that uses it.

    Args:
        url: of the server, without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # A request holds its connection until its reply is sampled: no limit here, the actor has
        # one. Connections are not kept for long: the server closes idle ones after 5 s.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        self._session = aiohttp.ClientSession(connector=connector)

    async def post(self, door: str, body: object, *, deadline_s: float | None) -> Any:
        """Ask, and return the decoded answer.

        Args:
            door: path, e.g. `/generate`.
            body: anything JSON has, and NumPy arrays.
            deadline_s: None for requests that somebody else watches over.

        Raises:
            ServerError: an answer other than 200.
            ServerGoneError: no answer, or one that is no JSON.
        """
        data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        return await self._ask("POST", door, data, deadline_s)

    async def get(self, door: str, *, deadline_s: float) -> Any:
        """As `post`, without a body."""
        return await self._ask("GET", door, None, deadline_s)

    async def stream(self, door: str, body: object) -> AsyncIterator[Any]:
        """The pieces of a streamed answer (server-sent events), each decoded; the last is whole.

        Raises:
            ServerError: an answer other than 200, or an error in the middle.
            ServerGoneError: no answer, or it broke off.
        """
        data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        try:
            async with self._session.post(
                self.url + door, data=data, headers=JSON, timeout=timeout, read_bufsize=LINE_BYTES
            ) as answer:
                if answer.status != 200:
                    raise ServerError(door, answer.status, _error_text(await answer.read()))
                async for line in answer.content:
                    text = line.removeprefix(b"data:").strip()
                    if text and text != b"[DONE]":
                        piece = orjson.loads(text)
                        if "error" in piece:
                            raise ServerError(door, 400, _error_text(text))
                        yield piece
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerGoneError(f"{self.url}{door}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        await self._session.close()

    async def _ask(self, verb: str, door: str, data: bytes | None, deadline_s: float | None) -> Any:
        timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_S)
        # A payload of weights is large; as a file it is sent in pieces, between other work.
        body_file = None if data is None else io.BytesIO(data)
        try:
            async with self._session.request(
                verb, self.url + door, data=body_file, headers=JSON, timeout=timeout
            ) as answer:
                body = await answer.read()
                status = answer.status
        except TimeoutError as error:
            limit = f"in {deadline_s} s" if deadline_s is not None else "the connection"
            raise ServerGoneError(f"{self.url}{door} did not answer {limit}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGoneError(f"{self.url}{door}: {type(error).__name__}: {error}") from error
        if status != 200:
            raise ServerError(door, status, _error_text(body))
        if body[:1] not in (b"{", b"["):
            return body.decode(errors="replace")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ServerGoneError(f"{self.url}{door}: {type(error).__name__}: {error}") from error


def _error_text(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return text[:ERROR_CHARS]
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    return text[:ERROR_CHARS]
