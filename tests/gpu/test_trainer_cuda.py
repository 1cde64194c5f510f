"""The learner on GPUs: kernels against the CPU, half precision, ranks over NCCL, speed.

    pytest tests/gpu/test_trainer_cuda.py -m gpu -s

With two GPUs or more, sharding over NCCL is compared with one rank; else that test is left out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from proc.trainer_rank import learner_on, trained
from unit.trainer.kit import VOCABULARY, write_model

from milepost.actors.trainer.fsdp.attention import has_varlen
from milepost.actors.trainer.fsdp.group import RankGroup, open_group
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.rows import Minibatch, Row

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LARGE: dict[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
"""About 0.3 B parameters."""


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = tmp_path_factory.mktemp("rendezvous") / "store"
    opened = open_group(rank=0, world_size=1, device="cuda", rendezvous=store, deadline_s=60)
    yield opened
    opened.close()


def random_rows(lengths: list[int], vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, vocabulary, length, dtype=np.int32) for length in lengths]


@pytest.mark.parametrize(("compute", "tolerance"), [(torch.float32, 2e-4), (torch.bfloat16, 0.15)])
def test_log_probs_on_the_gpu_are_those_of_the_cpu(
    one_gpu: RankGroup, tmp_path: Path, compute: torch.dtype, tolerance: float
) -> None:
    """Float32 goes through padded blocks, half precision through the kernel for packed rows."""
    folder = write_model(tmp_path / "model", head_dim=16)
    rows = random_rows([40, 7, 90, 2, 64], VOCABULARY)
    learner = learner_on(one_gpu, folder, compute=compute)
    found = learner.score(rows, 0.8)
    policy = PackedPolicy(load_model(folder, gradient_checkpointing=False))
    for row, scored in zip(rows, found, strict=True):
        ids = torch.from_numpy(row.astype(np.int64))[None]
        policy.lm.config._attn_implementation = "sdpa"
        with torch.no_grad():
            every = (policy.lm(input_ids=ids).logits[0, :-1] / 0.8).log_softmax(-1)
        policy.lm.config._attn_implementation = "milepost_packed"
        expected = every.gather(-1, ids[0, 1:, None])[:, 0].numpy()
        assert np.abs(scored[1:] - expected).max() < tolerance
    sys.stdout.write(f"\nvarlen kernel: {has_varlen()}")


def test_two_gpus_train_what_one_trains(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    folder = write_model(tmp_path / "model")
    expected = trained(folder, tmp_path, 1, "cuda", "whole")
    for layered in ("whole", "layered"):
        found = trained(folder, tmp_path, 2, "cuda", layered)
        for name, tensor in expected.items():
            assert (found[name] - tensor).abs().max() < 1e-5, (name, layered)


def test_speed_of_half_precision_on_long_rows(one_gpu: RankGroup, tmp_path: Path) -> None:
    """Packed rows of unequal length; the figure is printed, and must not be absurd."""
    folder = write_model(tmp_path / "large", **LARGE)
    learner = learner_on(one_gpu, folder, compute=torch.bfloat16, sharding="layered")
    lengths = [2048, 1500, 900, 4000, 300, 3100, 700, 2500] * 2
    rows: list[Row] = []
    for ids in random_rows(lengths, LARGE["vocab_size"]):
        loss = np.arange(len(ids) // 2, len(ids))
        rows.append(
            Row(
                token_ids=ids,
                loss_positions=loss,
                rollout_logprobs=np.full(len(loss), -11.0, np.float32),
                versions=np.zeros(len(loss), np.int64),
                advantage=1.0 - 2.0 * (len(rows) % 2),
            )
        )
    tokens = sum(len(row.loss_positions) for row in rows)
    minibatch = Minibatch(rows=tuple(rows), loss_tokens=tokens, trajectories=len(rows))
    seconds = []
    for step in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        outcome = learner.train((minibatch,), step)
        seconds.append(time.perf_counter() - started)
        assert not outcome.tripped
    rate = sum(lengths) / min(seconds[1:])
    flops = 6 * learner.policy.num_parameters * rate
    memory = torch.cuda.max_memory_allocated() / 2**30
    sys.stdout.write(
        f"\n{learner.policy.num_parameters / 1e6:.0f} M parameters, bfloat16: "
        f"{rate:,.0f} tokens/s, {flops / 1e12:.0f} TFLOP/s, peak {memory:.1f} GiB"
    )
    assert rate > 10_000
