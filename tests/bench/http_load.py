"""A load client for the HTTP door: small enough that the server is what is measured."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

USER = "Find out what is wrong with the build and repair it."
WORDS = (  # noqa: SIM905
    "the build fails because of a missing header in module parser while tests for the scheduler "
    "pass on every other machine so look at line forty two of config and change its default value "
    "before running make again with verbose output enabled and report what happened"
).split()


def speak(file: Path) -> None:
    """Say the words of this file from now on, as often as they stand there."""
    WORDS[:] = file.read_text(encoding="utf-8").split()


def prose(generator: random.Random, words: int) -> str:
    """So many words, with a number in between: about 1.2 tokens each."""
    said = [generator.choice(WORDS) for _ in range(words)]
    said[0] = f"[{generator.randrange(10**6)}]"
    return " ".join(said)


class Connection:
    """One keep-alive connection."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer."""
        if self._streams is None:
            host, port = self._place.hostname, self._place.port
            self._streams = await asyncio.open_connection(host, port, limit=1 << 26)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        status, length = int(lines[0].split(" ")[1]), 0
        for line in lines[1:]:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return status, await reader.readexactly(length) if length else b""

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()


@dataclass
class Chat:
    """One conversation of a client that keeps its history as JSON."""

    url: str
    seed: int
    new_words: int
    tools: bytes = b""
    session: str = ""
    latencies_s: list[float] = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)
    connection: Connection | None = None

    async def open(self, first_words: int = 0) -> None:
        """A session of its own."""
        self.connection = Connection(self.url)
        self._random = random.Random(self.seed)
        status, body = await self.connection.send("POST", "/sessions")
        assert status == 200, body
        self.session = json.loads(body)["session_id"]
        words = first_words or self.new_words
        self._say({"role": "user", "content": f"{USER} {prose(self._random, words)}"})

    def _say(self, message: dict[str, Any]) -> None:
        self._parts.append(json.dumps(message).encode())

    async def turn(self) -> bytes:
        """Ask for a reply and answer it."""
        assert self.connection is not None
        body = b'{"model":"m","messages":[%s]%s}' % (b",".join(self._parts), self.tools)
        started_s = time.perf_counter()
        path = f"/sessions/{self.session}/v1/chat/completions"
        status, answer = await self.connection.send("POST", path, body)
        self.latencies_s.append(time.perf_counter() - started_s)
        assert status == 200, answer
        message = json.loads(answer)["choices"][0]["message"]
        self._say(message)
        self._say({"role": "user", "content": prose(self._random, self.new_words)})
        return answer


async def watch_health(url: str, gaps_s: list[float], every_s: float = 0.02) -> None:
    """Latency of /health, again and again, until cancelled."""
    connection = Connection(url)
    while True:
        started_s = time.perf_counter()
        status, _ = await connection.send("GET", "/health")
        assert status == 200
        gaps_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(every_s)


def quantile(values: list[float], share: float) -> float:
    """Of sorted values; nan when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
