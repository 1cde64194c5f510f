"""Agents of the system tests, named in topologies as `proc.system.agents:NAME`."""

from __future__ import annotations

import asyncio

from milepost.actors.agent import Agent, Episode
from milepost.configs.recipes.lookup.agent import LookupAgent
from milepost.messages.shared import Purpose


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
