"""One real engine actor in a process of its own; supervisor, publisher and session are played."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from unit.engine.kit import Weights, digest_of, tiny_config

from milepost.actors.arrays import to_bulk
from milepost.configs.actors import EngineConfig, PublisherConfig
from milepost.configs.run import ModelConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.bus import Bus
from milepost.messages.engine import (
    ActivateEpoch,
    Generate,
    PauseMode,
    PrepareEpoch,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import EngineReady
from milepost.messages.shared import Message, SamplingParams
from milepost.messages.supervisor import Begin, Heartbeat, Hello, Ready, Welcome

ENGINE = "engine-0"
PEERS = ("supervisor", "publisher", "session-0")
ASK_S = 30.0


@dataclass
class Scene:
    """The engine, and the buses of everybody else."""

    buses: dict[str, Bus]
    process: asyncio.subprocess.Process
    folder: Path
    ask_s: float = ASK_S
    facts: dict[str, Any] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    says_it_needs_weights: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, source: str, message: Message) -> Message:
        """The engine's answer."""
        asked = self.buses[source].ask(ENGINE, message, deadline_s=self.ask_s)
        return (await asked).message

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled; a receive that is cancelled loses nothing."""
        bus = self.buses[name]
        while True:
            incoming = await bus.receive()
            match incoming.message:
                case Hello():
                    bus.reply(incoming, Welcome())
                case Ready(facts=facts):
                    self.facts = facts
                    bus.tell(ENGINE, Begin(), deadline_s=ASK_S)
                case EngineReady():
                    self.says_it_needs_weights.set()
                case Heartbeat():
                    self.heartbeats.append(incoming.message)
                case _:
                    raise AssertionError(f"{name} was told {incoming.message}")

    async def publish(
        self, version: int, weights: Weights, mode: PauseMode = PauseMode.RETRACT
    ) -> list[Message]:
        """One epoch in two buckets; every answer."""
        names = tuple(weights)
        specs = tuple(
            TensorSpec(name=name, dtype="float32", shape=weights[name].shape) for name in names
        )
        answers = [
            await self.ask("publisher", PrepareEpoch(version=version, tensors=specs, num_buckets=2))
        ]
        for index, part in enumerate((names[::2], names[1::2])):
            bulks = tuple(to_bulk(weights[name]) for name in part)
            bucket = WeightBucket(version=version, index=index, names=part, tensors=bulks)
            answers.append(await self.ask("publisher", bucket))
        activate = ActivateEpoch(version=version, mode=mode, digest=digest_of(weights))
        return [*answers, await self.ask("publisher", activate)]

    def generate(self, key: str, row: Any, **sampling: Any) -> asyncio.Task[Message]:
        """Ask for a reply; the answer comes when it is sampled."""
        message = Generate(
            request_id=key,
            session_id=key,
            token_ids=to_bulk(row),
            sampling=SamplingParams(**sampling),
        )
        return asyncio.create_task(self.ask("session-0", message))

    async def terminate(self) -> int:
        """Stop it as the supervisor does; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def engine_process(
    model_config: dict[str, Any] | None = None,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    context_tokens: int = 256,
    ask_s: float = ASK_S,
    **config: Any,
) -> AsyncIterator[Scene]:
    """Start the actor, greet it, and let it begin; kill it at the end.

    Args:
        model_config: `config.json`; the tiny one by default.
        dtype: of the weights.
        context_tokens: most tokens of a row.
        ask_s: deadline of each question.
        config: `[actors.engine]`.
    """
    with tempfile.TemporaryDirectory(prefix="mp-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(model_config or tiny_config()))
        addresses = {
            actor: Address(endpoint=f"ipc://{folder}/{actor}") for actor in (*PEERS, ENGINE)
        }
        topology = Topology(
            run=RunConfig(name="test", steps=1),
            model=ModelConfig(path=name, dtype=dtype, context_tokens_max=context_tokens),
            actors=ActorsConfig(engine=EngineConfig(**config), publisher=PublisherConfig()),
        )
        child = ActorSpec(
            actor=ENGINE, kind="engine", index=0, incarnation=1, run_id="r",
            run_folder=name, addresses=addresses, topology=topology, topology_hash="h",
        )  # fmt: skip
        (folder / "spec.json").write_bytes(msgspec.json.encode(child))
        buses = {
            peer: await Bus.open(name=peer, incarnation=1, run_id="r", addresses=addresses)
            for peer in PEERS
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "milepost.actors", "--spec", str(folder / "spec.json"),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        scene = Scene(buses, process, folder, ask_s)
        tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
        try:
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
