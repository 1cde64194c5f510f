"""A running job as far as the guests' door can tell: a real door, and peers played here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from unit.agent.kit import QUESTION, reply

from milepost.actors.agent import Prompt
from milepost.configs.actors import GuestsConfig, RolloutConfig
from milepost.configs.run import DataConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.bus import Bus, Incoming
from milepost.messages.rollout import AgentReady, EpisodeEnded
from milepost.messages.session import ChatTurn
from milepost.messages.supervisor import Begin, Hello, Ready, Welcome

PEERS: Final = ("supervisor", "rollout", "session-0")
WAIT_S: Final = 30.0
MILEPOST: Final = (
    sys.executable,
    "-P",
    "-c",
    "from milepost.launch.cli import main; raise SystemExit(main())",
)
TESTS: Final = Path(__file__).parents[1]


@dataclass
class Job:
    """A running job, as far as a door can tell: its peers are played here."""

    folder: Path
    buses: dict[str, Bus]
    heard: asyncio.Queue[Any] = field(default_factory=lambda: asyncio.Queue(256))
    answers_chats: bool = True
    guests: list[Process] = field(default_factory=list)
    held: list[tuple[Bus, Incoming]] = field(default_factory=list)
    """Chats that were not answered."""

    async def serve(self, name: str) -> None:
        bus = self.buses[name]
        while True:
            self._handle(bus, await bus.receive())

    def _handle(self, bus: Bus, incoming: Incoming) -> None:
        match incoming.message:
            case Hello():
                bus.reply(incoming, Welcome())
            case Ready():
                bus.tell("guests", Begin(), deadline_s=WAIT_S)
            case ChatTurn():
                self.heard.put_nowait(incoming.message)
                self.held.append((bus, incoming))
                if self.answers_chats:
                    self.release()
            case AgentReady() | EpisodeEnded():
                self.heard.put_nowait(incoming.message)
            case _:
                pass

    def release(self) -> None:
        """Answer what was held back."""
        held, self.held = self.held, []
        for bus, incoming in held:
            bus.reply(incoming, reply("cat"))

    async def next(self, kind: type) -> Any:
        while True:
            message = await self.heard.get()
            if isinstance(message, kind):
                return message

    async def room(self, episodes_max: int) -> None:
        """Wait until rollout was told of this much room."""
        while (await self.next(AgentReady)).episodes_max != episodes_max:
            pass

    async def tell(self, message: Any) -> None:
        await self.buses["rollout"].tell("guests", message, deadline_s=WAIT_S)

    async def visit(self, agent: str, *words: str) -> Process:
        """`milepost agent AGENT --connect ...`, as a person starts it."""
        process = await asyncio.create_subprocess_exec(
            *MILEPOST, "agent", agent, "--connect", str(self.folder), "--name", "visitor", *words,
            stdout=PIPE, env=environment(),
        )  # fmt: skip
        self.guests.append(process)
        return process


def environment() -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), inherited])}


@contextlib.asynccontextmanager
async def job(folder: Path, reward: str = "", **config: Any) -> AsyncIterator[Job]:
    """Start the door, greet it and let it begin; kill everything at the end."""
    addresses = {name: Address(endpoint=f"ipc://{folder}/{name}") for name in (*PEERS, "guests")}
    topology = Topology(
        run=RunConfig(name="test", steps=1),
        data=DataConfig(prompts="x", reward=reward, options={"split": "a"}),
        actors=ActorsConfig(rollout=RolloutConfig(), guests=GuestsConfig(**config)),
    )
    spec = ActorSpec(
        actor="guests", kind="guests", index=0, incarnation=1, run_id="r1", run_folder=str(folder),
        addresses=addresses, topology=topology, topology_hash="h",
    )  # fmt: skip
    written = folder / "spec.json"
    written.write_bytes(msgspec.json.encode(spec))
    buses = {
        peer: await Bus.open(name=peer, incarnation=1, run_id="r1", addresses=addresses)
        for peer in PEERS
    }
    scene = Job(folder, buses)
    tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
    door = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "milepost.actors", "--spec", str(written), env=environment()
    )
    try:
        await scene.room(0)
        yield scene
    finally:
        for process in (*scene.guests, door):
            if process.returncode is None:
                process.kill()
            await process.communicate()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bus in buses.values():
            await bus.close(deadline_s=0.5)


def prompt(**metadata: Any) -> Prompt:
    return Prompt(prompt_id="p", messages=[QUESTION], label="cat", metadata=metadata)
