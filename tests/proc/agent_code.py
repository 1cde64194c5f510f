"""Agents as users write them. Imported by the agent process."""

from __future__ import annotations

import os
from pathlib import Path

from milepost.actors.agent import Agent, Episode, Part
from milepost.actors.agent.sandbox import Sandbox


class Asker(Agent):
    """Asks once; a reward function judges. Notes that it was started and stopped."""

    def __init__(self, notes: str) -> None:
        self._notes = Path(notes)

    async def start(self) -> None:
        self._note(f"started with {self.data_options}")

    async def run(self, episode: Episode) -> None:
        if episode.metadata.get("raises"):
            raise RuntimeError("tool broke")
        await episode.chat(episode.prompt.messages)

    async def stop(self) -> None:
        self._note("stopped")

    def _note(self, text: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{text}\n")


class NoAgent:
    """Not one."""


class Teller(Agent):
    """Asks once, and gives the reward itself."""

    async def run(self, episode: Episode) -> None:
        await episode.chat(episode.prompt.messages)
        episode.report(reward=1.0)


class Silent(Agent):
    """Leaves the reward to others."""

    async def run(self, episode: Episode) -> None:
        await episode.chat(episode.prompt.messages)


class Ends(Agent):
    """Ends the whole process."""

    async def run(self, _episode: Episode) -> None:
        os._exit(7)


class Reader(Agent):
    """Reads the reply while it is sampled, and prints each piece as it comes."""

    async def run(self, episode: Episode) -> None:
        async for piece in episode.stream(episode.prompt.messages):
            text = piece.content if isinstance(piece, Part) else f"whole: {piece.text}"
            print(text, flush=True)  # noqa: T201
        episode.report(reward=1.0)


class Boxer(Agent):
    """Opens a sandbox, prints where it is, and sits in it."""

    async def run(self, _episode: Episode) -> None:
        async with Sandbox(leases=self.leases) as box:
            print(box.folder, flush=True)  # noqa: T201
            await box.shell("sleep 86397.5")
