"""The HTTP door of a session core in this process: real sockets, engines in the test's hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from unit.session.kit import Play, play, renderer, reply_to

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import Answered, Event, Received, WorkDone
from milepost.actors.session.http.door import Door, DooredCore
from milepost.actors.session.http.lifecycle import FreeSessions, Lifecycle
from milepost.actors.session.http.models import Models
from milepost.actors.session.http.server import HttpServer, bind
from milepost.actors.session.http.service import Chats
from milepost.configs.actors import HttpConfig, TreeConfig
from milepost.messages.session import GeneratedPart
from milepost.messages.shared import EpisodeLimits, SamplingParams

TOKENS_MAX = 1_000_000
BUFFER_BYTES = 4096
"""Of each socket in the kernel, or about: so a client that does not read is noticed early."""


@dataclass
class Served:
    """A core behind its door.

    Attributes:
        url: of the door.
        changed: set whenever the core has ordered something.
    """

    game: Play
    url: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    core: DooredCore = None  # type: ignore[assignment]

    def feed(self, event: Event) -> None:
        """Give the core an event, as the shell of an actor does."""
        self.game.feed(self.core.handle(event, self.game.now_s))
        self.core.validate()
        self.changed.set()
        works, self.game.works = self.game.works, {}
        for key, work in works.items():
            done: Any = work
            self.feed(WorkDone(key, done.carry_out(renderer())))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the core orders."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def asked(self) -> None:
        """Wait until an engine was asked."""
        await self.until(lambda: bool(self.game.asks))

    def part(self, text: str) -> None:
        """The engine has sampled the beginning of its reply."""
        _, _, request = self.game.open_ask()
        token_ids = to_bulk(renderer().tokenizer.encode(text))
        part = GeneratedPart(request_id=request.request_id, start=0, token_ids=token_ids)
        self.feed(Received("engine-0", part))

    def sample(self, text: str) -> None:
        """The engine answers."""
        key, ask, request = self.game.open_ask()
        del self.game.asks[key]
        self.feed(Answered(key, ask.to, reply_to(request, text)))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection whose client holds little in the kernel."""
        place = urlsplit(self.url)
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        plain.setblocking(False)  # noqa: FBT003 - the socket's own signature
        loop = asyncio.get_running_loop()
        await loop.sock_connect(plain, (str(place.hostname), place.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=1 << 13)
        self.writers.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def served(
    config: HttpConfig, *, tree: TreeConfig | None = None, adapters: tuple[str, ...] = ()
) -> AsyncIterator[Served]:
    """Open the door; close it at the end."""
    scene = Served(play(context_tokens_max=TOKENS_MAX, tree=tree))
    door = Door(scene.game.core, scene.feed)
    scene.core = DooredCore(scene.game.core, door)
    scene.game.desk.adapters = adapters
    models = Models("m", adapters)
    chats = Chats(door, {}, (), models)
    limits = EpisodeLimits(reply_tokens_max=TOKENS_MAX, tokens_max=TOKENS_MAX)
    free = FreeSessions(
        allowed=True, key="", sampling=SamplingParams(tokens_max=TOKENS_MAX), limits=limits
    )
    lifecycle = Lifecycle(
        door,
        chats,
        renderer(),
        scene.game.desk.rules.leaves,
        models=models,
        free=free,
        aside=_at_once,
    )
    listener, scene.url = bind(config, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    server = HttpServer(config, door, chats, lifecycle)
    await server.open(listener)
    scene.core.start(0.0)
    try:
        yield scene
    finally:
        for writer in scene.writers:
            await closed(writer)
        await server.close()


async def _at_once(function: Callable[[], Any]) -> Any:
    return function()


async def exchange(
    scene: Served, head: str, body: bytes = b"", *, path: str = "/sessions"
) -> tuple[int, str]:
    """Status and body of the answer to a POST on a connection of its own."""
    reader, writer = await scene.connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + body)
    status, told = await answer(reader)
    await closed(writer)
    return status, told


async def answer(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of the next answer on a connection."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    told = await reader.readexactly(int(fields.get("content-length", "0")))
    return int(lines[0].split(" ")[1]), told.decode()


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection that the other side may have reset."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
