"""Trainer ranks over the real bus: one or two of them, stopped and gone on, train one policy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash
from msgspec.structs import replace
from numpy.typing import NDArray
from proc.trainer_process import Scene, topology, trainer_processes
from proc.trainer_rank import trained
from safetensors.numpy import load_file
from unit.trainer.kit import batch_of, group, write_model

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.messages.buffer import (
    Batch,
    BatchRequested,
    CheckpointSaved,
    GroupsRefused,
    StepTrained,
)
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import Drained, StepRecorded, WorkFinished

pytestmark = pytest.mark.timeout(180)

STEPS = 2
REWARDS = ((0.0, 1.0, 0.5), (1.0, 0.0, 0.0, 1.0))
"""Seven rows: two ranks have an unequal share of them, and of micro-batches."""


def honest(request: BatchRequested, *, last: int = STEPS) -> Batch | None:
    """One rank's part of a batch; none after the last step."""
    if request.step >= last:
        return None
    step = request.step
    groups = [group(f"{name}{step}", REWARDS[at], version=step) for at, name in enumerate("ab")]
    return batch_of(groups, step=step, minibatches=2, rank=request.rank, ranks=request.world_size)


def one_bad_group(request: BatchRequested, asked: list[int]) -> Batch | None:
    """The first answer holds a group whose tokens are not the hashed ones."""
    batch = honest(request)
    asked.append(request.step)
    if batch is None or len(asked) > 1:
        return batch
    bad = group("bad", REWARDS[0])
    ids = from_bulk(bad[0].token_ids).copy()
    ids[0] += 1 if ids[0] == 0 else -1
    bad[0] = replace(bad[0], token_ids=to_bulk(ids))
    return batch_of([bad, group("b0", REWARDS[1])], minibatches=2)


def test_two_ranks_that_shard_layer_by_layer_train_what_one_trains(tmp_path: Path) -> None:
    """Each layer is a group of its own; one that took a mean over ranks would learn too slowly."""
    model = write_model(tmp_path / "model")
    expected = trained(model, tmp_path, 1, "cpu", "whole")
    found = trained(model, tmp_path, 2, "cpu", "layered")
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 1e-6, name


async def finish(scene: Scene) -> dict[str, NDArray[np.float32]]:
    """Let it train to its end; the weights it leaves."""
    await scene.until(lambda: bool(scene.of(WorkFinished)))
    (finished,) = scene.of(WorkFinished)
    return load_file(Path(finished.summary["hugging_face"]) / "model.safetensors")


def metric(scene: Scene, name: str) -> list[float]:
    told = scene.of(StepRecorded)
    return [each.metrics[name] for each in told if name in each.metrics]


async def test_two_ranks_stopped_half_way_and_one_rank_that_goes_on_equal_one_unbroken_rank(
    tmp_path: Path,
) -> None:
    """Sharding, uneven parts, a drain, a checkpoint read by another number of ranks: no trace."""
    model = write_model(tmp_path / "model")
    unbroken = topology(model, ranks=1, steps=STEPS)
    asked: list[int] = []
    async with trainer_processes(
        tmp_path / "one", unbroken, partial(one_bad_group, asked=asked)
    ) as scene:
        expected = await finish(scene)
        (refused,) = scene.of(GroupsRefused)
        assert refused.group_ids == ("bad",)
        assert refused.reasons[0].startswith("C1 same tokens")
        assert [each.group_ids for each in scene.of(StepTrained)] == [("a0", "b0"), ("a1", "b1")]
        check_publications(scene, expected)
        norms, losses = metric(scene, "train/grad_norm"), metric(scene, "train/loss")
        assert await scene.terminate() == [0]

    two = topology(model, ranks=2, steps=STEPS)
    async with trainer_processes(tmp_path / "two", two, partial(honest, last=1)) as scene:
        await scene.until(lambda: bool(scene.of(StepTrained)))
        assert await scene.drain() == [Drained(actor=rank) for rank in scene.ranks]
        (saved,) = scene.of(CheckpointSaved)
        assert saved.step == 1
        assert metric(scene, "train/grad_norm") == pytest.approx(norms[:1], rel=1e-4)
        assert metric(scene, "train/loss") == pytest.approx(losses[:1], abs=1e-6)
        assert await scene.terminate() == [0, 0]

    async with trainer_processes(tmp_path / "two", unbroken, honest, resume_step=1) as scene:
        found = await finish(scene)
        assert scene.facts["trainer-0"]["optimizer_step"] == 2
        assert [each.step for each in scene.of(StepTrained)] == [1]
        assert metric(scene, "train/grad_norm") == pytest.approx(norms[1:], rel=1e-4)
        assert await scene.terminate() == [0]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.abs(found[name] - tensor).max() < 1e-6, name


def check_publications(scene: Scene, final: dict[str, NDArray[np.float32]]) -> None:
    """Versions 0 to 2 came, whole; the last one is what the checkpoint holds."""
    assert [(each.version, each.final) for each in scene.of(VersionReady)] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    ready = scene.of(VersionReady)[-1]
    assert len(ready.probe_rows) == len(ready.probe_logprobs) > 0
    hashed, arrived = {}, {}
    for bucket in [each for each in scene.of(BucketReady) if each.version == 2]:
        for name, tensor in zip(bucket.names, bucket.tensors, strict=True):
            hashed[name] = name.encode() + bytes(tensor.data)
            arrived[name] = from_bulk(tensor)
    whole = b"".join(hashed[spec.name] for spec in ready.tensors)
    assert xxhash.xxh3_128_hexdigest(whole) == ready.digest
    assert arrived.keys() == final.keys()
    assert all(np.array_equal(arrived[name], final[name]) for name in final)
