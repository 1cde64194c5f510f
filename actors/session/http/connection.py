"""One client's connection: when it is cut, and what it is told when something breaks.

A client that does not read holds what was written to it: a little in the kernel, a little here, and
the request that waits to write on. After `write_s` it is cut off, by name.
"""

from __future__ import annotations

import logging
import select
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp.web_protocol import RequestHandler

from milepost.actors.session.http.answers import error

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

    from milepost.configs.actors import HttpConfig

log = logging.getLogger(__name__)

GONE: Final = "its client closed the connection"
TOLD_CHARS_MAX: Final = 200
CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""Said of a socket whose other end was closed; a broken one is told of in any case."""
FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
PROBES: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
"""A client whose machine vanished says no goodbye: it is asked, and found gone in two minutes."""


@dataclass(slots=True)
class Places:
    """How many connections there are.

    Attributes:
        config: of the door.
        taken: connections that are open.
    """

    config: HttpConfig
    taken: int = 0


class Connection(RequestHandler):
    """See the module.

    Args:
        manager: knows all connections.
        places: shared by all of them.
        options: of aiohttp's.
    """

    def __init__(self, manager: web.Server, places: Places, **options: Any) -> None:
        super().__init__(manager, **options)
        self._places = places
        self._has_place = False
        self._stalled: asyncio.TimerHandle | None = None
        self.why_gone = GONE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of aiohttp, while there is a place."""
        places, most = self._places, self._places.config.connections_max
        if places.taken >= most:
            told = b'{"error":"%d connections are open, the most there may be"}' % most
            transport.write(FULL % (len(told), told))  # type: ignore[attr-defined]
            transport.close()
            return
        places.taken += 1
        self._has_place = True
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """As of aiohttp; the place is free."""
        if self._has_place:
            self._places.taken -= 1
            self._has_place = False
        self._flows()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read what was written: from now on it has so long."""
        super().pause_writing()
        if self._stalled is None and self.transport is not None:
            write_s = self._places.config.write_s
            self._stalled = self._loop.call_later(write_s, self._cut, self.transport)

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()
        self._flows()

    def force_close(self) -> None:
        """As of aiohttp; what is still to be written cannot hold the connection for ever."""
        transport = self.transport
        super().force_close()
        if transport is not None and transport.get_write_buffer_size():
            self._loop.call_later(self._places.config.write_s, transport.abort)

    def _flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut(self, transport: asyncio.Transport) -> None:
        write_s = self._places.config.write_s
        self.why_gone = f"its client read nothing for http.write_s = {write_s:g} s"
        log.warning("%s is cut off: %s", transport.get_extra_info("peername"), self.why_gone)
        transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and our own mistakes, in the shape of every other refusal.

        Raises:
            ConnectionError: a part of another answer is on its way.
        """
        super().handle_error(request, status, exc, message)
        told = (message or "").partition("\n")[0][:TOLD_CHARS_MAX] if status < 500 else ""
        told = told or "the session server failed, its log says how"
        answer = error(status, told, path=request.path)
        answer.force_close()
        return answer


def why_gone(request: web.BaseRequest) -> str:
    """Why nobody waits for the answer to this request any more."""
    protocol = request.protocol
    return protocol.why_gone if isinstance(protocol, Connection) else GONE


def has_left(request: web.BaseRequest) -> bool:
    """Whether its client closed the connection, also when the event loop has not heard of it yet.

    What is written to such a connection is taken by the kernel all the same.
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), CLOSED)
    return bool(poll.poll(0))


def probe(listener: socket.socket) -> None:
    """Ask clients that are silent for long whether they are there; its connections inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES:
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
