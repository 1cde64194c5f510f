"""Agents of the system tests, named in topologies as `proc.system.agents:NAME`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import aiohttp

from milepost.actors.agent import Agent, Episode, EpisodeStopped
from milepost.configs.recipes.lookup.agent import LookupAgent
from milepost.configs.recipes.lookup.directory import TOOLS
from milepost.configs.recipes.lookup.environment import LookupEnvironment
from milepost.messages.shared import Purpose

TURNS, SECONDS, REPLY_TOKENS, TOKENS = range(4)
"""The bound that `Bounded` runs into, by number of the prompt modulo 4."""


class Held(LookupAgent):
    """Looks up, but episodes of training prompts from number `hold_from` on never end.

    Prompts are not shuffled in these tests, so a prompt's number is its place in the run, and the
    run stands still at one and the same step, with work in flight.
    """

    def __init__(self, hold_from: int) -> None:
        self._hold_from = hold_from

    async def run(self, episode: Episode) -> None:
        number = int(episode.prompt.prompt_id.rpartition("-")[2])
        if episode.purpose is Purpose.TRAIN and number >= self._hold_from:
            await asyncio.Event().wait()
        await super().run(episode)


class Unexamined(LookupAgent):
    """Looks up, but of the evaluation's episodes only the first `exams` end.

    The first of the others says so into `begun`, a named pipe.
    """

    def __init__(self, exams: int, begun: str) -> None:
        self._left = exams
        self._begun = Path(begun)

    async def run(self, episode: Episode) -> None:
        if episode.purpose is Purpose.EVALUATE:
            self._left -= 1
            if self._left == -1:
                self._begun.write_text("begun")
            if self._left < 0:
                await asyncio.Event().wait()
        await super().run(episode)


class Slow(LookupAgent):
    """Looks up after `seconds`: an environment that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def run(self, episode: Episode) -> None:
        await asyncio.sleep(self._seconds)
        await super().run(episode)


class Same(Agent):
    """Gives every episode the same reward."""

    async def run(self, episode: Episode) -> None:
        await episode.chat(episode.prompt.messages)
        episode.report(reward=0.5)


class Forking(Agent):
    """Asks once, forks in two at the same time, and runs a sub-agent with a prompt of its own.

    A reply is longer or shorter by chance, and so is the reward.
    """

    async def run(self, episode: Episode) -> None:
        messages = list(episode.prompt.messages)
        first, _ = await asyncio.gather(
            episode.chat(messages), episode.chat([{"role": "user", "content": "a sub-agent"}])
        )
        begun = [*messages, first.message]
        left, right = await asyncio.gather(
            *(episode.chat([*begun, {"role": "user", "content": word}]) for word in ("yes", "no"))
        )
        longer = left.usage.completion_tokens > right.usage.completion_tokens
        episode.report(reward=float(longer), metrics={"solved": float(longer)})


class Flaky(LookupAgent):
    """Looks up after `seconds`, and fails one time in `every`."""

    def __init__(self, seconds: float, every: int) -> None:
        self._seconds = seconds
        self._every = every
        self._count = 0

    async def run(self, episode: Episode) -> None:
        self._count += 1
        fails = self._count % self._every == 0
        await asyncio.sleep(self._seconds)
        await super().run(episode)
        if fails:
            raise RuntimeError("the tool broke")


class ByHttp(Agent):
    """Looks up over its session's HTTP address, every second turn as a stream.

    Writes down its door, and what another episode's door says to its own session id.
    """

    _doors: ClassVar[set[str]] = set()

    def __init__(self, book: str) -> None:
        self._book = Path(book)

    async def run(self, episode: Episode) -> None:
        base, _, key = episode.address.partition("/sessions/")
        self._doors.add(base)
        environment = LookupEnvironment(episode.prompt)
        messages = list(episode.prompt.messages)
        results = messages
        async with aiohttp.ClientSession() as client:
            for door in sorted(self._doors - {base}):
                async with client.get(f"{door}/sessions/{key}") as response:
                    self._write(base, response.status)
            while results:
                stream = len(messages) > len(episode.prompt.messages)
                message = await self._chat(client, episode.address, messages, stream=stream)
                if not message:
                    break
                results = environment.react(message)
                messages = [*messages, message, *results]
        self._write(base, 0)
        episode.report(reward=environment.reward, metrics=environment.metrics)

    def _write(self, door: str, status: int) -> None:
        with self._book.open("a") as book:
            book.write(f"{door} {status}\n")

    async def _chat(
        self, client: aiohttp.ClientSession, address: str, messages: Any, *, stream: bool
    ) -> dict[str, Any]:
        """The reply, put together as a client does; empty when a limit was reached."""
        body = {"messages": messages, "tools": TOOLS, "stream": stream}
        async with client.post(f"{address}/v1/chat/completions", json=body) as response:
            told = await response.text()
            if response.status in (400, 409) and json.loads(told).get("limit"):
                return {}
            assert response.status == 200, told
        if not stream:
            whole: dict[str, Any] = json.loads(told)["choices"][0]["message"]
            return whole
        message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
        for line in told.splitlines():
            if not line.startswith("data: {"):
                continue
            delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
            message["content"] += delta.get("content") or ""
            message["tool_calls"] += delta.get("tool_calls", [])
        return message


class Bounded(Agent):
    """Runs into another bound of its episode for each of four prompts in turn."""

    async def run(self, episode: Episode) -> None:
        messages = list(episode.prompt.messages)
        member = int(episode.trajectory_id.rpartition(".")[2])
        tokens_max = 1 if _number(episode) % 4 == REPLY_TOKENS else None
        while True:
            reply = await episode.chat(messages, tokens_max=tokens_max)
            episode.report(reward=float(member % 2))
            if episode.purpose is Purpose.EVALUATE:
                return
            if _number(episode) % 4 == SECONDS:
                await asyncio.Event().wait()
            more = "and again " * (40 if _number(episode) % 4 == TOKENS else 1)
            messages = [*messages, reply.message, {"role": "user", "content": more}]


class Fragile(Agent):
    """Of the first group one member fails; the others wait, and say what they hear."""

    async def run(self, episode: Episode) -> None:
        member = int(episode.trajectory_id.rpartition(".")[2])
        is_first = episode.purpose is Purpose.TRAIN and not _number(episode)
        try:
            await episode.chat(episode.prompt.messages)
            episode.report(reward=float(member % 2))
            if is_first and member:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, EpisodeStopped):
            # In the middle of a reply that is not sampled on, or between two.
            print(f"member {member} was told", flush=True)  # noqa: T201
            raise
        if is_first:
            raise RuntimeError("the world is gone")


def _number(episode: Episode) -> int:
    return int(episode.prompt.prompt_id.rpartition("-")[2])
