"""Agent hosts as real processes, and the peers that they have in a run, played here."""

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
from milepost.actors.agent.processes import started
from milepost.configs.actors import RolloutConfig
from milepost.configs.run import DataConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.agent import ChatPart
from milepost.messages.bus import Bus, Incoming
from milepost.messages.rollout import AgentReady, EpisodeEnded
from milepost.messages.session import ChatTurn
from milepost.messages.supervisor import Begin, Hello, PortOpened, Ready, Welcome

PEERS: Final = ("supervisor", "rollout", "session-0")
WAIT_S: Final = 30.0
TESTS: Final = Path(__file__).parents[1]
MILEPOST: Final = (
    sys.executable,
    "-P",
    "-c",
    "from milepost.launch.cli import main; raise SystemExit(main())",
)
PARTS: Final = ("c", "a", "t")
"""Of the reply that sessions give."""


@dataclass
class Host:
    """One agent host, and what everybody else heard of it."""

    name: str
    folder: Path
    buses: dict[str, Bus]
    process: Process | None = None
    ports: dict[str, int] = field(default_factory=dict)
    """Of its own, by endpoint: the kernel's number of each."""
    heard: asyncio.Queue[Any] = field(default_factory=lambda: asyncio.Queue(256))
    answers_chats: bool = True
    held: list[tuple[Bus, Incoming]] = field(default_factory=list)
    """Chats that were not answered."""
    guests: list[Process] = field(default_factory=list)
    """Processes of agents that came from outside."""

    async def serve(self, peer: str) -> None:
        """Play one peer until cancelled."""
        bus = self.buses[peer]
        while True:
            self._handle(bus, await bus.receive())

    def _handle(self, bus: Bus, incoming: Incoming) -> None:
        match incoming.message:
            case Hello():
                bus.reply(incoming, Welcome())
            case Ready():
                bus.tell(self.name, Begin(), deadline_s=WAIT_S)
            case PortOpened(endpoint=endpoint, inode=inode):
                self.ports[endpoint] = inode
            case ChatTurn():
                self.heard.put_nowait(incoming.message)
                self.held.append((bus, incoming))
                if self.answers_chats:
                    self.release()
            case AgentReady() | EpisodeEnded():
                self.heard.put_nowait(incoming.message)
            case _:
                pass

    async def stream(self, number: int) -> None:
        """Tell the host part `number` of the reply of the chat that is held."""
        [(bus, incoming)] = self.held
        assert isinstance(incoming.message, ChatTurn)
        part = ChatPart(stream=incoming.message.stream, number=number, content=PARTS[number - 1])
        await bus.tell(self.name, part, deadline_s=WAIT_S)

    def release(self) -> None:
        """Answer what was held back."""
        held, self.held = self.held, []
        for bus, incoming in held:
            bus.reply(incoming, reply("cat"))

    async def next(self, kind: type) -> Any:
        """The next message of this type."""
        while True:
            message = await self.heard.get()
            if isinstance(message, kind):
                return message

    async def room(self, episodes_max: int) -> None:
        """Wait until rollout was told of this much room."""
        while (await self.next(AgentReady)).episodes_max != episodes_max:
            pass

    async def tell(self, message: Any, *, by: str = "rollout") -> None:
        """Tell the host something."""
        await self.buses[by].tell(self.name, message, deadline_s=WAIT_S)

    async def visit(self, agent: str, *words: str) -> Process:
        """`milepost agent AGENT --connect ...`, as a person starts it."""
        where = ("--connect", str(self.folder), "--name", "visitor")
        command = (*MILEPOST, "agent", agent, *where, *words)
        creation = asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment())
        process = await started(creation)
        self.guests.append(process)
        return process


def environment() -> dict[str, str]:
    """Ours, with the tests' folder in front of the path."""
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), inherited])}


@contextlib.asynccontextmanager
async def host(
    folder: Path, name: str, reward: str = "", *, pipes: bool = False, **actors: Any
) -> AsyncIterator[Host]:
    """Start the host, greet it and let it begin; kill everything at the end.

    Args:
        folder: of the run.
        name: of the process.
        reward: `module:function`.
        pipes: its standard error is read by the test.
        actors: tables of the topology beside the rollout actor's.
    """
    addresses = {each: Address(endpoint=f"ipc://{folder}/{each}") for each in (*PEERS, name)}
    topology = Topology(
        run=RunConfig(name="test", steps=1),
        data=DataConfig(prompts="x", reward=reward, options={"split": "a"}),
        actors=ActorsConfig(rollout=RolloutConfig(), **actors),
    )
    spec = ActorSpec(
        actor=name, kind=name.partition("-")[0], index=0, incarnation=1, run_id="r1",
        run_folder=str(folder), addresses=addresses, topology=topology, topology_hash="h",
    )  # fmt: skip
    written = folder / "spec.json"
    written.write_bytes(msgspec.json.encode(spec))
    buses = {
        peer: await Bus.open(name=peer, incarnation=1, run_id="r1", addresses=addresses)
        for peer in PEERS
    }
    scene = Host(name, folder, buses)
    tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
    words = (sys.executable, "-P", "-m", "milepost.actors", "--spec", str(written))
    scene.process = await started(
        asyncio.create_subprocess_exec(*words, stderr=PIPE if pipes else None, env=environment())
    )
    try:
        yield scene
    finally:
        for process in (*scene.guests, scene.process):
            if process.returncode is None:
                process.kill()
            await process.communicate()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bus in buses.values():
            await bus.close(deadline_s=0.5)


def prompt(**metadata: Any) -> Prompt:
    """A prompt whose answer is cat."""
    return Prompt(prompt_id="p", messages=[QUESTION], label="cat", metadata=metadata)
