"""Real trainer ranks in processes of their own; everybody they talk with is played."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from milepost.actors.seal import sealed
from milepost.configs.actors import BufferConfig, PublisherConfig, RolloutConfig, TrainerConfig
from milepost.configs.run import AlgorithmConfig, ModelConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.buffer import (
    Batch,
    BatchRequested,
    CheckpointSaved,
    GroupsRefused,
    StepTrained,
)
from milepost.messages.bus import Bus, Incoming
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    Begin,
    Drain,
    EventReported,
    Heartbeat,
    Hello,
    Ready,
    StepRecorded,
    Welcome,
    WorkFinished,
)
from milepost.messages.trainer import VersionPublished
from milepost.messages.trajectory import Trajectory

Kind = TypeVar("Kind")

PEERS = ("supervisor", "buffer", "publisher", "rollout")
ASK_S = 60.0


def with_digests(row: Trajectory, digests: dict[int, str]) -> Trajectory:
    """The row, as engines with these weights would have given it."""
    turns = tuple(
        replace(
            turn,
            weights=tuple(replace(used, digest=digests[used.version]) for used in turn.weights),
        )
        for turn in row.turns
    )
    return sealed(replace(row, turns=turns))


@dataclass
class Scene:
    """The ranks, the buses of everybody else, and what was heard."""

    ranks: tuple[str, ...]
    buses: dict[str, Bus]
    batch: Callable[[BatchRequested], Batch | None]
    """What the buffer answers; None leaves the question open."""
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    heard: list[Message] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _parked: list[tuple[Bus, Incoming, BatchRequested]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled."""
        bus = self.buses[name]
        while True:
            incoming = await bus.receive()
            self._answer(name, bus, incoming)
            self._news.set()

    def _answer(self, name: str, bus: Bus, incoming: Incoming) -> None:
        message = incoming.message
        match message:
            case Hello():
                bus.reply(incoming, Welcome())
            case Ready():
                self.facts[message.actor] = message.facts
                if len(self.facts) == len(self.ranks):
                    for rank in self.ranks:
                        bus.tell(rank, Begin(), deadline_s=ASK_S)
            case BatchRequested():
                self._parked.append((bus, incoming, message))
                self._answer_batches()
            case VersionReady() | BucketReady():
                self.heard.append(message)
                self._publish(bus)
                self._answer_batches()
            case StepTrained() | GroupsRefused() | CheckpointSaved():
                if name == "buffer":
                    self.heard.append(message)
            case StepRecorded() | WorkFinished() | EventReported():
                self.heard.append(message)
            case Heartbeat():
                pass
            case _:
                raise AssertionError(f"{name} was told {message}")

    def _answer_batches(self) -> None:
        """Rows were sampled by the version of their step, with the weights that were made."""
        digests = {each.version: each.digest for each in self.of(VersionReady)}
        for parked in [each for each in self._parked if each[2].step in digests]:
            self._parked.remove(parked)
            bus, incoming, message = parked
            if (batch := self.batch(message)) is not None:
                rows = tuple(with_digests(each, digests) for each in batch.trajectories)
                bus.reply(incoming, replace(batch, trajectories=rows))

    def _publish(self, bus: Bus) -> None:
        """A version is published as soon as it is here whole."""
        ready = self.of(VersionReady)[-1]
        buckets = [each for each in self.of(BucketReady) if each.version == ready.version]
        if len(buckets) == ready.num_buckets:
            published = VersionPublished(version=ready.version, final=ready.final)
            for rank in self.ranks:
                bus.tell(rank, published, deadline_s=ASK_S)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """What was heard of one kind, in order."""
        return [each for each in self.heard if isinstance(each, kind)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for what was heard to make this true; a rank that died ends the wait."""
        while not true():
            dead = [each.returncode for each in self.processes if each.returncode is not None]
            assert not dead, f"a rank died: {dead}"
            self._news.clear()
            waits = [asyncio.create_task(self._news.wait())]
            waits += [asyncio.create_task(each.wait()) for each in self.processes]  # type: ignore[arg-type]
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()

    async def drain(self) -> list[Message]:
        """Drain every rank, as the supervisor does."""
        bus = self.buses["supervisor"]
        drain = Drain(deadline_s=ASK_S)
        answers = [bus.ask(rank, drain, deadline_s=ASK_S) for rank in self.ranks]
        return [(await answer).message for answer in answers]

    async def terminate(self) -> list[int]:
        """Stop every rank as the supervisor does; the exit codes."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [await process.wait() for process in self.processes]


def topology(model: Path, *, ranks: int, steps: int, **trainer: Any) -> Topology:
    """A policy trainer on a tiny model, whose schedule and clipping are felt."""
    return Topology(
        run=RunConfig(name="test", steps=steps),
        model=ModelConfig(path=str(model), context_tokens_max=64),
        algorithm=AlgorithmConfig(prompts_per_step=2, minibatches_per_step=2),
        actors=ActorsConfig(
            rollout=RolloutConfig(),
            buffer=BufferConfig(),
            publisher=PublisherConfig(bucket_bytes_max=4096),
            # A large epsilon: AdamW would blow the last bits of a tiny gradient up to whole steps.
            trainer=TrainerConfig(
                ranks=ranks, lr=0.05, epsilon=0.1, microbatch_tokens_max=40, **trainer
            ),
        ),
    )


@contextlib.asynccontextmanager
async def trainer_processes(
    run_folder: Path,
    topology: Topology,
    batch: Callable[[BatchRequested], Batch | None],
    *,
    resume_step: int | None = None,
) -> AsyncIterator[Scene]:
    """Start all ranks, greet them, and let them begin; kill what is left at the end."""
    ranks = topology.names("trainer")
    with tempfile.TemporaryDirectory(prefix="mp-") as name:
        addresses = {actor: Address(endpoint=f"ipc://{name}/{actor}") for actor in (*PEERS, *ranks)}
        buses = {
            peer: await Bus.open(name=peer, incarnation=0, run_id="r", addresses=addresses)
            for peer in PEERS
        }
        scene = Scene(ranks, buses, batch)
        tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
        for index, rank in enumerate(ranks):
            spec = ActorSpec(
                actor=rank, kind="trainer", index=index, incarnation=0, run_id="r",
                run_folder=str(run_folder), addresses=addresses, topology=topology,
                topology_hash="h", resume_step=resume_step,
            )  # fmt: skip
            file = Path(name) / f"{rank}.json"
            file.write_bytes(msgspec.json.encode(spec))
            scene.processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "milepost.actors", "--spec", str(file),
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
        try:
            yield scene
        finally:
            for process in scene.processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for bus in buses.values():
                await bus.close(deadline_s=0.5)
