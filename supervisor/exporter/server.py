"""Answers scrapes with the newest snapshot that the supervisor published.

`python -P -m milepost.supervisor.exporter.server ENDPOINT RUN_ID FD KEY_FILE` beside a run, with a
pipe as standard input at whose end it goes; `milepost prometheus` attaches the same to a run that
goes on.
Each scrape costs the run nothing: it publishes once a second while anybody listens.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from milepost.messages.listener import Listener
from milepost.messages.supervisor import Snapshot
from milepost.supervisor.exporter.families import UP, families, gauge

SILENCE_S: Final = 5.0
"""Snapshots come once a second; older figures are not given out as those of now."""
GRACE_S: Final = 1.0
"""For a scrape that is being answered when everything ends."""


class Newest(Collector):
    """The newest snapshot, as long as it is fresh."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.is_heard = asyncio.Event()
        """A first one came."""
        self._heard_s = 0.0

    def take(self, snapshot: Snapshot) -> None:
        """A newer one."""
        self.snapshot, self._heard_s = snapshot, time.monotonic()
        self.is_heard.set()

    def collect(self) -> Iterator[Family]:
        """Its families, or that the run is not heard."""
        if self.snapshot is None or time.monotonic() - self._heard_s > SILENCE_S:
            yield gauge(*UP, 0.0)
        else:
            yield from families(self.snapshot)


class Exporter:
    """`GET /metrics`.

    Args:
        key: not empty: what `Authorization: Bearer` must carry.
    """

    def __init__(self, key: str = "") -> None:
        self._key = key
        self._newest = Newest()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._newest)

    async def listen(self, endpoint: str, run_id: str) -> None:
        """Take every snapshot that this run publishes there until cancelled.

        It need not publish yet: nothing that it writes at its start is waited for.
        """
        listener = Listener(endpoint, run_id)
        try:
            while True:
                message = await listener.newest(SILENCE_S)
                if isinstance(message, Snapshot):
                    self._newest.take(message)
        finally:
            await listener.close()

    async def serve(self, listening: socket.socket) -> web.AppRunner:
        """Begin to answer on a socket that is bound; the caller cleans the runner up."""
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=GRACE_S)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        return runner

    async def _metrics(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if self._key and not hmac.compare_digest(given.encode(), f"Bearer {self._key}".encode()):
            raise web.HTTPUnauthorized(text="the key of [tracking.prometheus] is wanted\n")
        if not self._newest.is_heard.is_set():
            # The run says something each second; a scrape that comes before that waits for it.
            heard = asyncio.ensure_future(self._newest.is_heard.wait())
            await asyncio.wait({heard}, timeout=SILENCE_S)
            heard.cancel()
        text = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def export(
    endpoint: str, run_id: str, listening: socket.socket, key: str, until: asyncio.Event
) -> None:
    """Answer scrapes until told otherwise."""
    exporter = Exporter(key)
    listener = asyncio.create_task(exporter.listen(endpoint, run_id), name="listen")
    ended = asyncio.create_task(until.wait(), name="until")
    runner = await exporter.serve(listening)
    try:
        await asyncio.wait({listener, ended}, return_when=asyncio.FIRST_COMPLETED)
        if listener.done():
            listener.result()
    finally:
        await runner.cleanup()
        listener.cancel()
        ended.cancel()
        await asyncio.gather(listener, ended, return_exceptions=True)


def when_it_ends(descriptor: int, call: Callable[[], None]) -> None:
    """Call once at the end of a pipe that nobody writes to; that end stays readable for ever."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        call()

    loop.add_reader(descriptor, ended)


async def _beside(endpoint: str, run_id: str, listening: socket.socket, key: str) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()
    when_it_ends(0, until.set)
    try:
        await export(endpoint, run_id, listening, key, until)
    finally:
        loop.remove_reader(0)


def main(endpoint: str, run_id: str, descriptor: int, key_file: str) -> int:
    """Serve until the supervisor lets go of the pipe."""
    key = Path(key_file).read_text(encoding="utf-8").strip() if key_file else ""
    os.set_inheritable(descriptor, False)  # noqa: FBT003
    with socket.socket(fileno=descriptor) as listening:
        asyncio.run(_beside(endpoint, run_id, listening, key))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
