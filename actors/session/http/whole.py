"""A reply that is there as a whole: head and body in one piece, by the short way.

Every turn ends here. The library makes a table of headers, fills in what is missing, and writes it
out again; from cold caches that takes as long as reading the reply.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http import SERVER_SOFTWARE

from milepost.actors.session.http.answers import JSON
from milepost.actors.session.http.connection import has_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.abc import AbstractStreamWriter

_HEAD: Final = (
    f"HTTP/%d.%d 200 OK\r\nContent-Type: {JSON}\r\nContent-Length: %d\r\nDate: %s\r\n"
    f"Server: {SERVER_SOFTWARE}\r\n%s\r\n"
)
_CLOSES: Final = "Connection: close\r\n"
_STAYS: Final = "Connection: keep-alive\r\n"


class Whole(web.StreamResponse):
    """Status 200 and this JSON, for a request that is no HEAD.

    Args:
        body: JSON.
        received: called when it was written to a client that is there.
    """

    def __init__(self, body: bytes, received: Callable[[], None]) -> None:
        super().__init__()
        self._whole = body
        self._received = received
        self._stays = False

    @property
    def keep_alive(self) -> bool:
        """As the client wishes, unless `force_close` was called."""
        return self._stays

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Write all of it; waits while its client does not read.

        Raises:
            ConnectionError: the client is gone.
        """
        self._stays = request.keep_alive and super().keep_alive is not False
        version, said = request.version, ""
        if not self._stays and version == HttpVersion11:
            said = _CLOSES
        elif self._stays and version == HttpVersion10:
            said = _STAYS
        head = _HEAD % (*version, len(self._whole), _date(int(time.time())), said)
        writer, is_there = request.writer, not has_left(request)
        await writer.write_eof(head.encode("ascii") + self._whole)
        if is_there:
            self._received()
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """It was written already."""
        assert not data, "a whole reply has no end of its own"


_dates: Final[dict[int, str]] = {}


def _date(now_s: int) -> str:
    """As HTTP writes it; made once in a second."""
    date = _dates.get(now_s)
    if date is None:
        _dates.clear()
        date = _dates[now_s] = formatdate(now_s, usegmt=True)
    return date
