"""Versions that stay on the GPU: the same bytes, names and digests as those that travel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from unit.trainer.kit import batch_of, group, write_model
from unit.weights.fake_gpu import FakeRuntime, Gpu

from milepost.actors.arrays import from_bulk
from milepost.actors.trainer.fsdp.blueprint import Blueprint, ordinary_memory
from milepost.actors.trainer.fsdp.device_export import DeviceExporter, NotHeld
from milepost.actors.trainer.fsdp.export import Weights, export_version
from milepost.actors.trainer.fsdp.learner import Learner
from milepost.actors.trainer.rows import read_batch
from milepost.actors.weights.cuda_ipc.layout import num_bytes_of
from milepost.actors.weights.cuda_ipc.mappings import Mappings
from milepost.configs.run import AlgorithmConfig

MakeLearner = Callable[..., Learner]
CPU = torch.device("cpu")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def by_bytes(learner: Learner, dtype: torch.dtype, version: int, bytes_max: int) -> Weights:
    blueprint = Blueprint.of(learner.policy, dtype, bytes_max=bytes_max)
    weights = export_version(
        learner.policy, learner.group, blueprint, version=version, allocate=ordinary_memory
    )
    assert weights is not None
    return weights


def train(learner: Learner, step: int) -> None:
    groups = [group(f"a{step}", (0.0, 1.0, 0.5)), group(f"b{step}", (1.0, 0.0, 1.0))]
    learner.train(read_batch(batch_of(groups, minibatches=2), AlgorithmConfig()), step)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_version_on_the_gpu_is_the_version_that_would_travel(
    make_learner: MakeLearner, tmp_path: Path, architecture: str, dtype: torch.dtype
) -> None:
    """The first is turned back whole, later ones go to their places: both ways, experts too."""
    sizes = EXPERTS if architecture == "qwen3_moe" else {}
    source = write_model(tmp_path / "model", architecture=architecture, **sizes)
    learner = make_learner(folder=source, compute=dtype)
    gpu = Gpu()
    exporter = DeviceExporter(FakeRuntime(gpu, "trainer"), CPU, dtype, bytes_max=4096)
    mappings = Mappings(FakeRuntime(gpu, "engine"))
    told = []
    for version in range(3):
        expected = by_bytes(learner, dtype, version, 4096)
        found, memory = exporter.export(learner.policy, version)
        assert found.tensors == expected.tensors
        assert found.digest == expected.digest
        assert found.tensor_digests == expected.tensor_digests
        specs = {spec.name: spec for spec in found.tensors}
        for bucket, travelled in zip(found.buckets, expected.buckets, strict=True):
            assert bucket.names == travelled.names
            assert bucket.tensors == ()
            wanted = [specs[name] for name in bucket.names]
            views = mappings.tensors(memory, wanted, bucket.offsets)
            for view, bulk in zip(views, travelled.tensors, strict=True):
                assert view.numpy().tobytes() == bytes(bulk.data)
        told.append(found.digest)
        exporter.keep((version,), announced=version)
        train(learner, version)
    assert len(set(told)) == 3, "training moved nothing"
    assert len(gpu.allocations) == 2


def test_bytes_are_given_on_demand_as_long_as_the_version_is_held(
    make_learner: MakeLearner,
) -> None:
    """An engine on another GPU, or one that cannot open the handle, takes what always travelled."""
    learner = make_learner()
    exporter = DeviceExporter(FakeRuntime(Gpu(), "t"), CPU, torch.float32, bytes_max=2048)
    expected = by_bytes(learner, torch.float32, 4, 2048)
    found, _ = exporter.export(learner.policy, 4)
    buckets = exporter.read_back(4)
    assert [bucket.index for bucket in buckets] == list(range(len(found.buckets)))
    for bucket, travelled, bare in zip(buckets, expected.buckets, found.buckets, strict=True):
        assert bucket.names == travelled.names == bare.names
        assert bucket.offsets == bare.offsets
        assert bucket.tensors == travelled.tensors
    kept = [from_bulk(bulk).copy() for bucket in buckets for bulk in bucket.tensors]
    exporter.keep((), announced=4)
    train(learner, 0)
    exporter.export(learner.policy, 5)
    with pytest.raises(NotHeld, match="version 4 is not on the GPU, there are 5"):
        exporter.read_back(4)
    after = [from_bulk(bulk) for bucket in buckets for bulk in bucket.tensors]
    assert all((one == other).all() for one, other in zip(kept, after, strict=True))


@pytest.mark.parametrize("piece_bytes", [1, 100, 256, 4096])
def test_digests_do_not_depend_on_the_pieces_they_are_read_in(
    make_learner: MakeLearner, piece_bytes: int
) -> None:
    from milepost.actors.weights.cuda_ipc.reading import HostReader

    learner = make_learner()
    exporter = DeviceExporter(FakeRuntime(Gpu(), "t"), CPU, torch.bfloat16, bytes_max=1 << 20)
    exporter._digests = HostReader(CPU, piece_bytes=piece_bytes, copies=True)
    found, memory = exporter.export(learner.policy, 0)
    expected = by_bytes(learner, torch.bfloat16, 0, 1 << 20)
    assert (found.digest, found.tensor_digests) == (expected.digest, expected.tensor_digests)
    assert memory.num_bytes >= sum(num_bytes_of(spec) for spec in found.tensors)
