"""The server of `milepost view`: loopback only, behind a token, read-only, with nothing foreign."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from milepost.launch.view.links import Links
from milepost.launch.view.runs import Runs
from milepost.launch.view.site import Site
from milepost.launch.view.speller import Spellers

LOOPBACK: Final = "127.0.0.1"
NAMES: Final = frozenset({LOOPBACK, "localhost"})
"""What a browser may call us. Another name means that a page of somebody else's had its name point
here (DNS rebinding), and would read ours as its own."""
REQUESTS_MAX: Final = 32
"""Being answered at once; more are asked to come again."""
HTTP_PORT: Final = "80"
"""Which no browser writes."""
CLOSE_S: Final = 0.5
TOKEN_BYTES: Final = 18
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer:
    """See the module. `async with ViewServer(runs) as server`.

    Args:
        runs: what is shown.
        port: 0 for any free one.

    Raises:
        OSError: on entering, when the port is taken.
    """

    def __init__(self, runs: Runs, port: int = 0) -> None:
        self._port = port
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._site = Site(runs, Links(f"/{self._token}"), Spellers())
        self._num_open = 0
        application = web.Application(middlewares=[self._guard])
        self._site.add_to(application.router)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLOSE_S)

    async def __aenter__(self) -> Self:
        """Listen."""
        listener = socket.create_server((LOOPBACK, self._port), backlog=REQUESTS_MAX)
        self._port = listener.getsockname()[1]
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; what is being answered gets half a second."""
        await self._runner.cleanup()
        await self._site.close()

    @property
    def address(self) -> str:
        """Of the first page."""
        return f"http://{LOOPBACK}:{self._port}/{self._token}/"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._num_open >= REQUESTS_MAX:
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
        self._num_open += 1
        try:
            response = self._objection(request) or await handler(request)
        except web.HTTPException as error:
            response = _refused(HTTPStatus(error.status), error.reason)
        finally:
            self._num_open -= 1
        response.headers.update(HEADERS)
        return response

    def _objection(self, request: web.Request) -> web.Response | None:
        name, _, port = request.headers.get("Host", "").partition(":")
        if name not in NAMES or (port or HTTP_PORT) != str(self._port):
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, "this is no name of this server")
        if request.method not in {"GET", "HEAD"}:
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "pages are read, nothing else")
        token = request.rel_url.raw_path.strip("/").partition("/")[0]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            told = "no such page: open the address that `milepost view` printed"
            return _refused(HTTPStatus.NOT_FOUND, told)
        return None


def _refused(status: HTTPStatus, why: str) -> web.Response:
    headers = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    return web.Response(status=status, text=f"{why}\n", headers=headers)
