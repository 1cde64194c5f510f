"""One real session actor in a process of its own; agent, engine and buffer are played here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from milepost.actors.arrays import to_bulk
from milepost.configs.actors import EngineConfig, SessionConfig
from milepost.configs.recipes.lookup.clerk import demonstrations
from milepost.configs.recipes.lookup.directory import TOOLS, VALUES
from milepost.configs.recipes.tiny.tokenizer import render, train_tokenizer, write_tokenizer
from milepost.configs.run import LimitsConfig, ModelConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.bus import Bus, Incoming
from milepost.messages.engine import AbortRequests, Generate, Generated
from milepost.messages.session import (
    ChatReply,
    ChatTurn,
    FinishTrajectory,
    OpenSessions,
    SessionSpec,
)
from milepost.messages.shared import (
    EpisodeLimits,
    FinishReason,
    Message,
    Purpose,
    SamplingParams,
    Status,
    VersionSpan,
    WeightsUsed,
)
from milepost.messages.supervisor import Begin, Hello, Ready, Welcome

PEERS = ("supervisor", "rollout", "agent-0", "engine-0", "buffer")
ASK_S = 30.0


@dataclass
class Scene:
    """The session actor, and the buses of everybody else."""

    buses: dict[str, Bus]
    pid: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    delivered: list[TrajectoryFinished] = field(default_factory=list)
    engine: Callable[[Generate], Message | None] = lambda _: None
    aborted: Callable[[AbortRequests], None] = lambda _: None
    after: Callable[[Callable[[], None]], None] = lambda answer: answer()
    """When the engine's answer goes out."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, source: str, message: Message) -> Message:
        """The session actor's answer."""
        asked = self.buses[source].ask("session-0", message, deadline_s=ASK_S)
        return (await asked).message

    async def episode(self, name: str, script: list[str]) -> TrajectoryFinished:
        """One whole episode: a turn for each text that the engine is to say, and the verdict."""
        await self.ask("rollout", OpenSessions(sessions=(spec(name),)))
        messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the pet of kai?"}]
        for _ in script:
            answer = await self.ask(
                "agent-0", ChatTurn(trajectory_id=name, messages=messages, tools=TOOLS, attempt=0)
            )
            assert isinstance(answer, ChatReply), answer
            messages = [*messages, answer.message]
            for call in answer.message.get("tool_calls", ()):
                result = {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": VALUES[len(messages)],
                }
                messages.append(result)
        verdict = FinishTrajectory(
            trajectory_id=name, attempt=0, status=Status.COMPLETED, reward=1.0
        )
        await self.ask("rollout", verdict)
        return next(each for each in self.delivered if each.trajectory.trajectory_id == name)

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled; a receive that is cancelled loses nothing."""
        bus = self.buses[name]
        while True:
            incoming = await bus.receive()
            self._handle(bus, incoming)

    def _handle(self, bus: Bus, incoming: Incoming) -> None:
        match incoming.message:
            case Hello(pid=pid):
                self.pid = pid
                bus.reply(incoming, Welcome())
            case Ready(facts=facts):
                self.facts = facts
                begun = bus.tell("session-0", Begin(), deadline_s=ASK_S)
                begun.add_done_callback(lambda _: self.has_begun.set())
            case Generate():
                answer = self.engine(incoming.message)
                if answer is not None:
                    self.after(partial(bus.reply, incoming, answer))
            case AbortRequests():
                self.aborted(incoming.message)
            case TrajectoryFinished():
                self.delivered.append(incoming.message)
            case _:
                pass


def spec(name: str) -> SessionSpec:
    """A session to open."""
    return SessionSpec(
        trajectory_id=name, group_id=name.partition(".")[0], prompt_id="p", attempt=0, group_size=1,
        sampling=SamplingParams(tokens_max=64), limits=EpisodeLimits(seconds_max=60.0),
        purpose=Purpose.TRAIN, deliver_to="buffer",
    )  # fmt: skip


def generated(request: Generate, token_ids: Any) -> Generated:
    """An engine's answer with these tokens."""
    return Generated(
        request_id=request.request_id,
        token_ids=to_bulk(token_ids),
        logprobs=to_bulk(np.full(len(token_ids), -0.5, dtype=np.float32)),
        spans=(VersionSpan(start=0, end=len(token_ids), version=1),),
        finish_reason=FinishReason.STOP,
        cached_tokens=0,
        weights=(WeightsUsed(version=1, digest="d1", kv_version=1),),
    )


def write_small_model(folder: Path) -> None:
    """Tokenizer and template of the look-up task."""
    texts = [render(prompt) for prompt in islice(demonstrations("train", 0, {}), 100)]
    tokenizer = train_tokenizer(texts, VALUES, size=360)
    write_tokenizer(folder, tokenizer, context_tokens_max=4096)


@contextlib.asynccontextmanager
async def session_process(
    model: Path,
    *,
    limits: LimitsConfig | None = None,
    context_tokens_max: int = 4096,
    **config: Any,
) -> AsyncIterator[Scene]:
    """Start the actor, greet it, and let it begin; kill it at the end."""
    with tempfile.TemporaryDirectory(prefix="mp-") as name:
        sockets = Path(name)
        addresses = {
            actor: Address(endpoint=f"ipc://{sockets}/{actor}") for actor in (*PEERS, "session-0")
        }
        topology = Topology(
            run=RunConfig(name="test", steps=1),
            model=ModelConfig(path=str(model), context_tokens_max=context_tokens_max),
            limits=limits or LimitsConfig(),
            actors=ActorsConfig(session=SessionConfig(**config), engine=EngineConfig()),
        )
        written = sockets / "spec.json"
        child = ActorSpec(
            actor="session-0", kind="session", index=0, incarnation=1, run_id="r",
            run_folder=name, addresses=addresses, topology=topology, topology_hash="h",
        )  # fmt: skip
        written.write_bytes(msgspec.json.encode(child))
        buses = {
            peer: await Bus.open(name=peer, incarnation=1, run_id="r", addresses=addresses)
            for peer in PEERS
        }
        scene = Scene(buses)
        tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "milepost.actors", "--spec", str(written),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            await scene.has_begun.wait()
            yield scene
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for bus in buses.values():
                await bus.close(deadline_s=0.5)
