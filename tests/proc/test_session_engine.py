"""A session actor's HTTP door before a live engine, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from proc.session_process import write_small_model
from unit.engine.kit import digest_of, random_weights, tiny_config, tiny_shape

from milepost.actors.arrays import to_bulk
from milepost.actors.session.text.tokenizer import load_tokenizer
from milepost.configs.actors import EngineConfig, HttpConfig, PublisherConfig, SessionConfig
from milepost.configs.run import LimitsConfig, ModelConfig, RunConfig, SamplingConfig
from milepost.configs.spec import ActorSpec, Address
from milepost.configs.topology import ActorsConfig, Topology
from milepost.messages.agent import ChatPart
from milepost.messages.buffer import TokensAccounted
from milepost.messages.bus import Bus
from milepost.messages.engine import (
    ActivateEpoch,
    EpochConfirmed,
    PauseMode,
    PrepareEpoch,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import EngineReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import Begin, Heartbeat, Hello, PortOpened, Ready, Welcome
from milepost.messages.trainer import VersionPublished

pytestmark = pytest.mark.timeout(150)

ACTORS = {"engine-0": "engine", "session-0": "session"}
PEERS = ("supervisor", "publisher", "rollout", "agent-0", "buffer")
WAIT_S = 60.0
NEARLY_GREEDY = 0.001
"""So cold that two sessions with seeds of their own say the same."""
USER = {"role": "user", "content": "What is the pet of kai?"}


@dataclass
class Scene:
    """Both actors, and the buses of everybody else."""

    buses: dict[str, Bus]
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    num_parts: int = 0
    """Of replies that an agent reads while they are sampled."""
    accounts: Counter[str] = field(default_factory=Counter)
    """Where tokens ended, as the session tells the buffer."""
    beats: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Statistics of each actor's last heartbeat."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each of these."""

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something that was heard makes it true; the test's own deadline bounds it."""
        while not holds():
            self.heard.clear()
            await self.heard.wait()

    async def serve(self, name: str) -> None:
        """Play one peer until cancelled."""
        bus = self.buses[name]
        while True:
            incoming = await bus.receive()
            match incoming.message:
                case Hello():
                    bus.reply(incoming, Welcome())
                case Ready(actor=actor, facts=facts):
                    self.facts[actor] = facts
                    await bus.tell(actor, Begin(), deadline_s=WAIT_S)
                    self.begun.add(actor)
                    if self.begun == ACTORS.keys():
                        self.ready.set()
                case Heartbeat(actor=actor, statistics=statistics):
                    self.beats[actor] = statistics
                case ChatPart():
                    self.num_parts += 1
                case TokensAccounted(tokens=tokens):
                    self.accounts.update(tokens)
                case EngineReady() | PortOpened():
                    pass
                case _:
                    raise AssertionError(f"{name} was told {incoming.message}")
            self.heard.set()

    async def publish(self, vocabulary: int) -> None:
        """Version 0: the engine confirms it, then the session hears of it."""
        weights = random_weights(tiny_shape(vocab_size=vocabulary), 0)
        names, digest = tuple(weights), digest_of(weights)
        specs = tuple(TensorSpec(name=n, dtype="float32", shape=weights[n].shape) for n in names)
        bulks = tuple(to_bulk(weights[name]) for name in names)
        epoch: list[Message] = [
            PrepareEpoch(version=0, tensors=specs, num_buckets=1),
            WeightBucket(version=0, index=0, names=names, tensors=bulks),
            ActivateEpoch(version=0, mode=PauseMode.RETRACT, digest=digest),
        ]
        bus = self.buses["publisher"]
        for message in epoch:
            answer = (await bus.ask("engine-0", message, deadline_s=WAIT_S)).message
        assert isinstance(answer, EpochConfirmed)
        word = VersionPublished(version=0, digest=digest)
        await bus.tell("session-0", word, deadline_s=WAIT_S)


@contextlib.asynccontextmanager
async def both(
    folder: Path, *, reply_tokens_max: int = 64, context_tokens_max: int = 256
) -> AsyncIterator[Scene]:
    """Start both, greet them, and let them begin; kill them at the end."""
    write_small_model(folder)
    vocabulary = load_tokenizer(folder).vocabulary_size
    (folder / "config.json").write_text(json.dumps(tiny_config(vocab_size=vocabulary)))
    addresses = {
        name: Address(endpoint=f"ipc://{folder}/{name}.sock") for name in (*PEERS, *ACTORS)
    }
    topology = Topology(
        run=RunConfig(name="test", steps=1),
        model=ModelConfig(path=str(folder), context_tokens_max=context_tokens_max),
        limits=LimitsConfig(reply_tokens_max=reply_tokens_max, tokens_max=context_tokens_max),
        sampling=SamplingConfig(temperature=NEARLY_GREEDY),
        actors=ActorsConfig(
            session=SessionConfig(http=HttpConfig()),
            engine=EngineConfig(slots=8, running_max=8),
            publisher=PublisherConfig(),
        ),
    )
    buses = {
        peer: await Bus.open(name=peer, incarnation=1, run_id="r", addresses=addresses)
        for peer in PEERS
    }
    scene = Scene(buses)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(scene.serve(peer)) for peer in PEERS]
    processes: list[Process] = []
    try:
        for name, kind in ACTORS.items():
            spec = ActorSpec(
                actor=name, kind=kind, index=0, incarnation=1, run_id="r", run_folder=str(folder),
                addresses=addresses, topology=topology, topology_hash="h",
            )  # fmt: skip
            file = folder / f"{name}.json"
            file.write_bytes(msgspec.json.encode(spec))
            processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "milepost.actors", "--spec", str(file),
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
        ready = asyncio.create_task(scene.ready.wait())
        tasks.append(ready)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()  # a peer that was told what it does not know ends first
        await scene.publish(vocabulary)
        yield scene
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bus in buses.values():
            await bus.close(deadline_s=0.5)


async def said(client: aiohttp.ClientSession, path: str, *, stream: bool) -> tuple[str, list[int]]:
    """Text of a reply in a session of its own, and the row that it made."""
    async with client.post("/sessions") as response:
        session = (await response.json())["session_id"]
    body: dict[str, Any] = {"messages": [USER], "stream": stream}
    if path == "responses":
        body = {"input": [USER], "stream": stream}
    async with client.post(f"/sessions/{session}/v1/{path}", json=body) as response:
        told = await response.text()
        assert response.status == 200, told
    async with client.get(f"/sessions/{session}") as response:
        row = (await response.json())["metadata"]["accumulated_token_ids"]
    return (streamed(path, told) if stream else whole(told)), row


def whole(told: str) -> str:
    content: str = json.loads(told)["choices"][0]["message"]["content"]
    return content


def streamed(path: str, told: str) -> str:
    lines = [line.removeprefix("data: ") for line in told.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    if path == "responses":
        kind = "response.output_text.delta"
        return "".join(event["delta"] for event in events if event["type"] == kind)
    if path == "messages":
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)
    deltas = [event["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


async def test_what_a_live_engine_streams_is_the_row_that_a_plain_request_makes(
    tmp_path: Path,
) -> None:
    """Ids and words, in every dialect: a stream is a way to read a reply, not another reply."""
    async with both(tmp_path) as scene:
        url = str(scene.facts["session-0"]["http"])
        timeout = aiohttp.ClientTimeout(WAIT_S)
        async with aiohttp.ClientSession(url, timeout=timeout) as client:
            text, row = await said(client, "chat/completions", stream=False)
            assert text
            for path in ("chat/completions", "responses", "messages"):
                assert await said(client, path, stream=True) == (text, row)
