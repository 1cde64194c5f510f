"""A weight version from the trainer's parameters to another process, made in place and copied.

    pytest tests/bench/bench_publication.py -s

Rounds of both alternate. Copied is: exported into ordinary memory tensor by tensor, then copied
into shared memory by the bus. The receiver maps every bucket, touches each of its pages, and keeps
a version until the next one is complete, as the publisher does. The first round of each pays for
fresh memory and is shown by itself; later ones use the memory of earlier versions again.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
import uvloop
import xxhash
from bench.bench_bus import peer
from bench.bus_peer import addresses
from unit.trainer.kit import write_model

from milepost.actors.trainer.fsdp.blueprint import Blueprint
from milepost.actors.trainer.fsdp.export import digest, export_tensors, export_version, tensor_bulk
from milepost.actors.trainer.fsdp.group import RankGroup, open_group
from milepost.actors.trainer.fsdp.memory import keep_freed_memory
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.messages.bus import Bus
from milepost.messages.engine import EpochAnswer, WeightBucket
from milepost.messages.publisher import BucketReady

ROUNDS = 12
BUCKET_BYTES = 64 << 20
SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 7,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "head_dim": 64,
}
Buckets: TypeAlias = tuple[BucketReady, ...]


class Round(NamedTuple):
    """Of one version, in milliseconds."""

    export_ms: float
    journey_ms: float
    cpu_ms: float


class Publication:
    """One policy whose versions go to one receiver."""

    def __init__(
        self, policy: ShardedPolicy, group: RankGroup, dtype: torch.dtype, bus: Bus
    ) -> None:
        self.policy, self.group, self.bus = policy, group, bus
        self.torch = ThreadPoolExecutor(1)
        self.blueprint = Blueprint.of(policy, dtype, bytes_max=BUCKET_BYTES)

    def copied(self, version: int) -> Buckets:
        """Tensor by tensor into ordinary memory."""
        tensors = export_tensors(self.policy, self.group, self.blueprint.dtype)
        bulks = {name: tensor_bulk(tensor) for name, tensor in tensors.items()}
        digest(bulks.items())
        for bulk in bulks.values():
            xxhash.xxh3_128_hexdigest(bulk.data)
        return tuple(
            BucketReady(
                version=version,
                index=index,
                names=names,
                tensors=tuple(bulks[name] for name in names),
            )
            for index, names in enumerate(self.blueprint.buckets)
        )

    def in_place(self, version: int) -> Buckets:
        """As the trainer does."""
        weights = export_version(
            self.policy,
            self.group,
            self.blueprint,
            version=version,
            allocate=partial(self.bus.allocate, to="bus"),
        )
        assert weights is not None
        return weights.buckets

    async def one(self, version: int, export: Callable[[int], Buckets]) -> Round:
        began, cpu = time.perf_counter(), time.process_time()
        buckets = await asyncio.get_running_loop().run_in_executor(self.torch, export, version)
        exported = time.perf_counter()
        for bucket in buckets:
            message = WeightBucket(
                version=version, index=bucket.index, names=bucket.names, tensors=bucket.tensors
            )
            await self.bus.ask("bus", message, deadline_s=60)
        await self.bus.ask("bus", EpochAnswer(version=version, ok=True), deadline_s=60)
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        while self.bus.statistics().memory.loans > len(buckets):  # noqa: ASYNC110
            # A step is trained meanwhile; nothing tells when it comes back.
            await asyncio.sleep(0.001)
        return Round(
            1e3 * (exported - began),
            1e3 * (ended - exported),
            1e3 * cpu,
        )


async def compare(policy: ShardedPolicy, group: RankGroup, dtype: torch.dtype) -> None:
    with tempfile.TemporaryDirectory() as folder, peer("holder", folder):
        places = addresses(folder)
        bus = await Bus.open(name="asker", incarnation=0, run_id="bench", addresses=places)
        publication = Publication(policy, group, dtype, bus)
        ways = {"copied": publication.copied, "in place": publication.in_place}
        rounds: dict[str, list[Round]] = {name: [] for name in ways}
        version = 0
        for _ in range(ROUNDS):
            for name, export in ways.items():
                version += 1
                rounds[name].append(await publication.one(version, export))
        assert bus.statistics().memory.allocated_elsewhere == 0
        publication.torch.shutdown()
        await bus.close()
    size = policy.num_parameters * dtype.itemsize / 1e6
    for name, all_of_it in rounds.items():
        first = all_of_it[0]
        export, journey, cpu = (
            statistics.median(getattr(one, field) for one in all_of_it[3:])
            for field in Round._fields
        )
        print(
            f"{size:5.0f} MB {dtype} {name:<9} export {export:6.1f} ms  journey {journey:6.1f} ms  "
            f"together {export + journey:6.1f} ms  cpu {cpu:6.1f} ms | first: export "
            f"{first.export_ms:6.1f} ms  journey {first.journey_ms:6.1f} ms  "
            f"cpu {first.cpu_ms:6.1f} ms"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_of_a_quarter_gigabyte(dtype: torch.dtype, tmp_path: Path) -> None:
    """What the trainer's process spends on it is its largest cost beside training."""
    torch.set_num_threads(1)
    keep_freed_memory()
    sizes = SIZES if dtype == torch.float32 else SIZES | {"num_hidden_layers": 14}
    folder = write_model(tmp_path / "model", **sizes)
    group = open_group(
        rank=0, world_size=1, device="cpu", rendezvous=tmp_path / "store", deadline_s=30
    )
    try:
        model = load_model(folder, gradient_checkpointing=False)
        policy = ShardedPolicy(PackedPolicy(model), group, compute=torch.float32)
        uvloop.run(compare(policy, group, dtype))
    finally:
        group.close()
