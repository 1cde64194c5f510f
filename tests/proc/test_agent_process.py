"""An agent actor over the real bus: the user's class, the reward function, and the endings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from unit.agent.kit import QUESTION, order, reply

from milepost.actors.agent import Prompt
from milepost.configs.actors import AgentConfig, RolloutConfig
from milepost.configs.run import DataConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.agent import CancelEpisode
from milepost.messages.bus import Bus, Incoming
from milepost.messages.rollout import AgentReady, EpisodeEnded
from milepost.messages.session import ChatTurn
from milepost.messages.supervisor import Begin, Hello, Ready, Welcome

pytestmark = pytest.mark.timeout(60)

PEERS = ("supervisor", "rollout", "session-0")
WAIT_S = 30.0


@dataclass
class Scene:
    """The agent actor, and what everybody else heard."""

    buses: dict[str, Bus]
    process: Process | None = None
    heard: asyncio.Queue[Any] = field(default_factory=lambda: asyncio.Queue(64))
    answers_chats: bool = True

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled."""
        bus = self.buses[name]
        while True:
            self._handle(bus, await bus.receive())

    def _handle(self, bus: Bus, incoming: Incoming) -> None:
        match incoming.message:
            case Hello():
                bus.reply(incoming, Welcome())
            case Ready():
                bus.tell("agent-0", Begin(), deadline_s=WAIT_S)
            case ChatTurn():
                self.heard.put_nowait(incoming.message)
                if self.answers_chats:
                    bus.reply(incoming, reply("cat"))
            case AgentReady() | EpisodeEnded():
                self.heard.put_nowait(incoming.message)
            case _:
                pass

    async def next(self, kind: type) -> Any:
        """The next message of this type."""
        while True:
            message = await self.heard.get()
            if isinstance(message, kind):
                return message

    async def tell(self, message: Any) -> None:
        """Tell the agent actor something, as the rollout actor."""
        await self.buses["rollout"].tell("agent-0", message, deadline_s=WAIT_S)


@contextlib.asynccontextmanager
async def agent_process(folder: Path, agent: str, **options: Any) -> AsyncIterator[Scene]:
    """Start the actor, greet it, and let it begin; kill it at the end."""
    addresses = {name: Address(endpoint=f"ipc://{folder}/{name}") for name in (*PEERS, "agent-0")}
    topology = Topology(
        run=RunConfig(name="test", steps=1),
        data=DataConfig(prompts="x", reward="proc.agent_rewards:exact", options={"split": "a"}),
        actors=ActorsConfig(
            rollout=RolloutConfig(), agent=AgentConfig(agent=agent, options=options)
        ),
    )
    spec = ActorSpec(
        actor="agent-0", kind="agent", index=0, incarnation=1, run_id="r", run_folder=str(folder),
        addresses=addresses, topology=topology, topology_hash="h",
    )  # fmt: skip
    written = folder / "spec.json"
    written.write_bytes(msgspec.json.encode(spec))
    buses = {
        peer: await Bus.open(name=peer, incarnation=1, run_id="r", addresses=addresses)
        for peer in PEERS
    }
    scene = Scene(buses)
    tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
    scene.process = process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "milepost.actors", "--spec", str(written), stderr=PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    try:
        yield scene
    finally:
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


async def test_episodes_run_are_judged_and_end_by_name(tmp_path: Path) -> None:
    """A good one with the reward function's reward, a broken one failed, a cancelled one aborted.

    Then the process is asked to stop, and the agent's own clean-up runs.
    """
    notes = tmp_path / "notes"
    async with agent_process(tmp_path, "proc.agent_code:Asker", notes=str(notes)) as scene:
        assert await scene.next(AgentReady) == AgentReady(agent="agent-0", episodes_max=256)
        await scene.tell(order("g.0", prompt=prompt()))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward, ended.cause) == ("completed", 1.0, "")
        assert ended.metrics == {"solved": 1.0}
        await scene.tell(order("g.1", prompt=prompt(raises=True)))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.reward) == ("failed", None)
        assert "RuntimeError: tool broke, at " in ended.cause
        scene.answers_chats = False
        await scene.tell(order("g.2", prompt=prompt()))
        turn = await scene.next(ChatTurn)
        assert (turn.trajectory_id, turn.attempt) == ("g.2", 0)
        await scene.tell(CancelEpisode(trajectory_id="g.2", reason="group dropped"))
        ended = await scene.next(EpisodeEnded)
        assert (ended.status.value, ended.cause) == ("aborted", "group dropped")
        assert scene.process is not None
        scene.process.send_signal(signal.SIGTERM)
        assert await scene.process.wait() == 0
    assert notes.read_text().splitlines() == ["started with {'split': 'a'}", "stopped"]


@pytest.mark.parametrize(
    ("agent", "options", "told"),
    [
        ("proc.agent_code:NoAgent", {}, "is no subclass of milepost.actors.agent.Agent"),
        ("proc.agent_code:Missing", {}, "is no subclass of milepost.actors.agent.Agent"),
        ("proc.agent_code:Asker", {"note": "x"}, "refuses its options {'note': 'x'}"),
        ("proc.nothing:Asker", {}, "No module named 'proc.nothing'"),
    ],
)
async def test_an_agent_that_cannot_be_made_ends_the_process_with_the_reason(
    tmp_path: Path, agent: str, options: dict[str, Any], told: str
) -> None:
    """Before any episode is taken."""
    async with agent_process(tmp_path, agent, **options) as scene:
        assert scene.process is not None
        _, stderr = await scene.process.communicate()
        assert scene.process.returncode == 1
        assert told in stderr.decode()
