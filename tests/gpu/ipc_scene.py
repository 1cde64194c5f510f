"""A real trainer and real engines on one device; publisher, buffer and supervisor are played."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from proc.trainer_process import with_digests
from unit.trainer.kit import batch_of, group

from milepost.configs.actors import (
    BufferConfig,
    EngineConfig,
    PublisherConfig,
    RolloutConfig,
    TrainerConfig,
)
from milepost.configs.run import AlgorithmConfig, ModelConfig, RunConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.buffer import BatchRequested
from milepost.messages.bus import Bus, Incoming
from milepost.messages.engine import (
    ActivateEpoch,
    CopyBucket,
    DigestTensors,
    EpochAnswer,
    EpochConfirmed,
    PauseMode,
    PrepareEpoch,
    TensorDigests,
    WeightBucket,
)
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import Begin, Hello, Ready, StepRecorded, Welcome
from milepost.messages.trainer import KeepVersions, VersionPublished

Kind = TypeVar("Kind")

PEERS = ("supervisor", "buffer", "publisher", "rollout")
TRAINER = "trainer-0"
ASK_S = 120.0
REWARDS = ((0.0, 1.0, 0.5), (1.0, 0.0, 0.0, 1.0))


@dataclass(frozen=True)
class Moved:
    """What one publication to one engine took, in seconds."""

    move_s: float
    """From PREPARE to the last answer of MOVE."""
    pause_s: float


@dataclass
class Scene:
    """Processes by name, the buses of everybody else, and what was heard."""

    buses: dict[str, Bus]
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    heard: list[Message] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    """Killed on purpose."""
    _parked: list[tuple[Incoming, BatchRequested]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled."""
        bus = self.buses[name]
        while True:
            incoming = await bus.receive()
            message = incoming.message
            match message:
                case Hello():
                    bus.reply(incoming, Welcome())
                case Ready():
                    self.facts[message.actor] = message.facts
                    if len(self.facts) == len(self.processes):
                        for actor in self.processes:
                            bus.tell(actor, Begin(), deadline_s=ASK_S)
                case BatchRequested():
                    self._parked.append((incoming, message))
                    self._answer_batches()
                case _:
                    self.heard.append(message)
                    self._answer_batches()
            self._news.set()

    def _answer_batches(self) -> None:
        """Rows were sampled by the version of their step, with the weights that were made."""
        digests = {each.version: each.digest for each in self.of(VersionReady)}
        for parked in [each for each in self._parked if each[1].step in digests]:
            self._parked.remove(parked)
            incoming, message = parked
            step = message.step
            groups = [
                group(f"{at}{step}", rewards, version=step) for at, rewards in enumerate(REWARDS)
            ]
            batch = batch_of(groups, step=step)
            rows = tuple(with_digests(each, digests) for each in batch.trajectories)
            answer = msgspec.structs.replace(batch, trajectories=rows)
            self.buses["buffer"].reply(incoming, answer)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.heard if isinstance(each, kind)]

    def metrics(self, name: str) -> list[float]:
        return [each.metrics[name] for each in self.of(StepRecorded) if name in each.metrics]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for what was heard to make this true; a process that died ends the wait."""
        while not true():
            ended = {
                name: process.returncode
                for name, process in self.processes.items()
                if process.returncode is not None and name not in self.dead
            }
            assert not ended, f"died: {ended}"
            self._news.clear()
            waits = [asyncio.create_task(self._news.wait())]
            waits += [
                asyncio.create_task(process.wait())  # type: ignore[arg-type]
                for name, process in self.processes.items()
                if name not in self.dead
            ]
            _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()

    async def version(self, number: int) -> tuple[VersionReady, list[BucketReady]]:
        """The trainer's version, whole."""
        found: list[BucketReady] = []

        def is_whole() -> bool:
            found[:] = [each for each in self.of(BucketReady) if each.version == number]
            ready = [each for each in self.of(VersionReady) if each.version == number]
            return bool(ready) and len(found) == ready[0].num_buckets

        await self.until(is_whole)
        (ready,) = (each for each in self.of(VersionReady) if each.version == number)
        return ready, sorted(found, key=lambda bucket: bucket.index)

    # ---- the publisher -------------------------------------------------------------------

    def question(self, engine: str, message: Message) -> asyncio.Future[Incoming]:
        return self.buses["publisher"].ask(engine, message, deadline_s=ASK_S)

    async def ask(self, engine: str, message: Message) -> Message:
        return (await self.question(engine, message)).message

    async def prepare(self, engine: str, ready: VersionReady, *, randomize: bool = False) -> str:
        """The GPU that the engine copies within, by its own word."""
        message = PrepareEpoch(
            version=ready.version,
            tensors=ready.tensors,
            num_buckets=ready.num_buckets,
            randomize=randomize,
        )
        answer = await self.ask(engine, message)
        assert isinstance(answer, EpochAnswer), answer
        assert answer.ok, answer
        return answer.device

    async def publish(
        self, engine: str, number: int, *, randomize: bool = False, compare: bool = False
    ) -> Moved:
        """All of an epoch with one engine, as the publisher does it.

        Args:
            engine: its name.
            number: of the version.
            randomize: as of `PrepareEpoch`.
            compare: read every tensor back afterwards.
        """
        ready, buckets = await self.version(number)
        started_s = time.perf_counter()
        await self.prepare(engine, ready, randomize=randomize)
        for bucket in buckets:
            answer = await self.ask(engine, move(ready, bucket))
            assert answer == EpochAnswer(version=number, ok=True), answer
        moved_s = time.perf_counter() - started_s
        mode = PauseMode.IN_PLACE
        activate = ActivateEpoch(version=number, mode=mode, digest=ready.digest)
        confirmed = await self.ask(engine, activate)
        assert isinstance(confirmed, EpochConfirmed), confirmed
        assert confirmed.digest == ready.digest
        if compare:
            assert await self.digests(engine, ready) == (number, ready.tensor_digests)
        return Moved(moved_s, confirmed.pause_s)

    async def digests(self, engine: str, ready: VersionReady) -> tuple[int, tuple[str, ...]]:
        """What the engine serves, read back from its weights."""
        message = DigestTensors(names=tuple(spec.name for spec in ready.tensors))
        answer = await self.ask(engine, message)
        assert isinstance(answer, TensorDigests), answer
        return answer.version, answer.digests

    def say_published(self, number: int) -> None:
        """The trainer may go on, and write over older versions."""
        bus = self.buses["publisher"]
        if any(ready.memory is not None for ready in self.of(VersionReady)):
            keep = KeepVersions(versions=(number,), announced=number)
            bus.tell(TRAINER, keep, deadline_s=ASK_S)
        bus.tell(TRAINER, VersionPublished(version=number), deadline_s=ASK_S)

    async def kill(self, name: str) -> None:
        self.dead.add(name)
        self.processes[name].kill()
        await self.processes[name].wait()


def move(ready: VersionReady, bucket: BucketReady) -> Message:
    """The message of MOVE for this bucket: by handle when the version lies on a GPU."""
    if ready.memory is None:
        return WeightBucket(
            version=bucket.version, index=bucket.index, names=bucket.names, tensors=bucket.tensors
        )
    return CopyBucket(
        version=bucket.version,
        index=bucket.index,
        names=bucket.names,
        offsets=bucket.offsets,
        memory=ready.memory,
    )


def topology(
    model: Path,
    *,
    device: str,
    engines: int,
    cuda_ipc: Literal["auto", "never", "always"],
    bucket_bytes_max: int,
) -> Topology:
    return Topology(
        run=RunConfig(name="test", steps=100),
        model=ModelConfig(path=str(model), dtype="bfloat16", context_tokens_max=64),
        algorithm=AlgorithmConfig(prompts_per_step=2),
        actors=ActorsConfig(
            rollout=RolloutConfig(),
            buffer=BufferConfig(),
            publisher=PublisherConfig(
                cuda_ipc=cuda_ipc,
                bucket_bytes_max=bucket_bytes_max,
                canary_turn_every=0,
            ),
            trainer=TrainerConfig(lr=1e-5, device=device, microbatch_tokens_max=256),
            engine=EngineConfig(replicas=engines, device=device, slots=8, running_max=4),
        ),
    )


@contextlib.asynccontextmanager
async def scene_of(run_folder: Path, topology: Topology) -> AsyncIterator[Scene]:
    """Start everybody, greet them, and let them begin; kill what is left at the end."""
    actors = dict.fromkeys(topology.names("engine"), "engine") | {TRAINER: "trainer"}
    with tempfile.TemporaryDirectory(prefix="mp-") as name:
        addresses = {
            actor: Address(endpoint=f"ipc://{name}/{actor}") for actor in (*PEERS, *actors)
        }
        buses = {
            peer: await Bus.open(name=peer, incarnation=0, run_id="r", addresses=addresses)
            for peer in PEERS
        }
        scene = Scene(buses)
        tasks = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
        for actor, kind in actors.items():
            index = int(actor.rpartition("-")[2])
            spec = ActorSpec(
                actor=actor, kind=kind, index=index, incarnation=0, run_id="r",
                run_folder=str(run_folder), addresses=addresses, topology=topology,
                topology_hash="h",
            )  # fmt: skip
            file = Path(name) / f"{actor}.json"
            file.write_bytes(msgspec.json.encode(spec))
            scene.processes[actor] = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "milepost.actors", "--spec", str(file),
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        try:
            yield scene
        finally:
            for process in scene.processes.values():
                if process.returncode is None:
                    process.kill()
                await process.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for bus in buses.values():
                await bus.close(deadline_s=0.5)
