"""The HTTP server of a session actor: it listens, bounds what comes in, and finds the handler."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from aiohttp import web

from milepost.actors.session.http.answers import JSON, error
from milepost.actors.session.http.connection import Connection, Places, probe
from milepost.actors.session.http.dialect import encode
from milepost.actors.session.http.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader
    from aiohttp.web_protocol import RequestHandler

    from milepost.actors.session.http.door import Door
    from milepost.actors.session.http.lifecycle import Lifecycle
    from milepost.actors.session.http.service import Chats
    from milepost.configs.actors import HttpConfig

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
FRAGMENT_BYTES: Final = 1 << 20
"""Of a body that is read at once: a long history arrives in few pieces."""
CLOSE_S: Final = 0.5
LINGER_S: Final = 2.0
"""How long the rest of a body that is refused is taken, for its client to read why."""


class HttpServer:
    """See the module.

    Args:
        config: of the door.
        door: to the core.
        chats: replies.
        lifecycle: sessions as things.
    """

    def __init__(self, config: HttpConfig, door: Door, chats: Chats, lifecycle: Lifecycle) -> None:
        self._config = config
        self._door = door
        self._chats = chats
        self._lifecycle = lifecycle
        self._loop = asyncio.get_running_loop()
        self._num_open = 0
        self._listener: asyncio.Server | None = None
        self._places = Places(config)
        self._server = web.Server(
            self._handle, request_factory=self._make_request, handler_cancellation=True
        )

    async def open(self, listener: socket.socket) -> None:
        """Accept connections."""
        self._listener = await self._loop.create_server(
            self._connection, sock=listener, backlog=BACKLOG
        )

    def _connection(self) -> Connection:
        return Connection(
            self._server,
            self._places,
            loop=self._loop,
            access_log=None,
            keepalive_timeout=self._config.idle_s,
            lingering_time=LINGER_S,
            read_bufsize=FRAGMENT_BYTES,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Stop; requests that are not answered yet are cut off."""
        if self._listener is not None:
            self._listener.close()
        await self._server.shutdown(CLOSE_S)

    def _make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            self._loop,
            client_max_size=self._config.body_bytes_max,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path == "/health":
            return web.Response(body=encode({"status": "ok"}), content_type=JSON)
        if not self._door.is_open:
            return error(503, "the run has not begun", {"Retry-After": "1"}, path=path)
        if self._num_open >= self._config.requests_max:
            told = f"{self._num_open} requests are being answered, the most there may be"
            return error(503, told, {"Retry-After": "1"}, path=path)
        self._num_open += 1
        try:
            return await self._dispatch(request)
        except web.HTTPRequestEntityTooLarge:
            told = f"the body has more than body_bytes_max = {self._config.body_bytes_max} bytes"
            return error(413, told, path=path)
        except web.RequestPayloadError as broken:
            return error(400, f"the body is no HTTP: {broken}", path=path)
        except web.HTTPException as refused:
            return error(refused.status, refused.text or refused.reason, path=path)
        finally:
            self._num_open -= 1

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        method, words = request.method, request.path.strip("/").split("/", 2)
        if words[0] != "sessions" or len(words) > 3:
            return error(404, f"no such path: {request.path}")
        if len(words) == 1:
            if method != "POST":
                return error(405, f"{method} /sessions: only POST opens a session")
            body = await self._body(request)
            return await self._lifecycle.opened(request, body)
        session = self._door.core.find(words[1])
        if session is None:
            return error(404, f"session not found: {words[1]}", path=request.path)
        path = words[2] if len(words) == 3 else ""
        match method, path:
            case "GET", "":
                return await self._lifecycle.told(words[1], session)
            case "DELETE", "":
                return await self._lifecycle.deleted(session)
            case "POST", "samples":
                return await self._lifecycle.samples(session, await self._body(request))
            case "POST", "v1/messages/count_tokens":
                return await self._lifecycle.counted(session, await self._body(request))
            case "GET", "v1/models":
                return self._lifecycle.models(session)
        spoken = path.removeprefix("v1/")
        if spoken not in DIALECTS or spoken == path:
            return error(404, f"a session has no path /{path}", path=request.path)
        if method != "POST":
            return error(405, f"{method} /{path}: only POST asks for a reply", path=request.path)
        return await self._chats.answer(request, session, spoken, await self._pieces(request))

    async def _body(self, request: web.BaseRequest) -> bytes:
        """The body as a whole."""
        return b"".join(await self._pieces(request))

    async def _pieces(self, request: web.BaseRequest) -> Sequence[bytes]:
        """The body as it came, unless it is too large (413) or too slow (the connection is cut)."""
        content, length = request.content, request.content_length
        if length is not None and length > self._config.body_bytes_max:
            raise web.HTTPRequestEntityTooLarge(self._config.body_bytes_max, length)
        await _check_head(request)
        transport = request.transport
        # A request keeps what it read until the next one on its connection: taken from its stream,
        # a long history is gone with its answer.
        if length is not None and content.is_eof():
            return await _taken(content)
        if transport is None:
            return (await request.read(),)
        late = self._loop.call_later(self._config.body_s, self._cut, transport, length)
        try:
            if length is None or length > FRAGMENT_BYTES:
                return (await request.read(),)
            # Waking up for each piece of a long history would cost more than reading it.
            await content.wait_eof()
            return await _taken(content)
        finally:
            late.cancel()

    def _cut(self, transport: asyncio.Transport, length: int | None) -> None:
        log.warning(
            "%s is cut off: its body of %s bytes did not arrive within http.body_s = %g s",
            transport.get_extra_info("peername"),
            "unknown" if length is None else length,
            self._config.body_s,
        )
        transport.abort()


async def _taken(content: StreamReader) -> list[bytes]:
    """The pieces of a body without chunks that is there; putting them together would be a copy."""
    pieces = []
    while piece := (await content.readchunk())[0]:
        pieces.append(piece)
    return pieces or [b""]


async def _check_head(request: web.BaseRequest) -> None:
    """What a client wants to know before it sends its body.

    Raises:
        HTTPUnsupportedMediaType: it would be compressed: nobody knows how large it would become.
        HTTPExpectationFailed: it expects what is not known here.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text=f"Content-Encoding {encoding}: send it plain")
    expected = request.headers.get("Expect", "")
    if expected.lower() == "100-continue":
        # curl waits for a second before it sends a long history without this.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    elif expected:
        raise web.HTTPExpectationFailed(text=f"Expect: {expected} is not known here")


def bind(config: HttpConfig, index: int) -> tuple[socket.socket, str]:
    """A listening place, and the base URL that clients reach it by.

    Raises:
        OSError: the port is taken, or the host is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port + index if config.port else 0))
    except OSError:
        listener.close()
        raise
    probe(listener)
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    host = config.advertised_host or config.host
    shown = f"[{host}]" if ":" in host else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"
