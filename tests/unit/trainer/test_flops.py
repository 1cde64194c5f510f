"""Operations of a step, counted layer by layer and product by product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from unit.trainer.kit import model_classes

from milepost.actors.trainer.fsdp.flops import (
    PEAK_TFLOPS,
    ModelFlops,
    peak_tflops,
    tflops_metrics,
)

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
MIXTURE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}


def product(rows: int, inner: int, columns: int) -> int:
    """Of two matrices: a multiplication and an addition for each entry and inner index."""
    return 2 * rows * inner * columns


def slow(s: int, widths: list[int]) -> float:
    """A forward pass over a row, every matrix product by itself; `widths` of the layers' MLPs."""
    total = 0.0
    for width in widths:
        total += product(s, 16, 4 * 8)  # queries
        total += 2 * product(s, 16, 2 * 8)  # keys, values
        for _ in range(4):
            total += product(s, 8, s) / 2  # scores: half of them are masked
            total += product(s, s, 8) / 2  # values
        total += product(s, 4 * 8, 16)  # out
        total += 3 * product(s, 16, width)  # gate, up, down
    return total + product(s, 16, 50)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_dense_model_costs_what_its_products_cost(architecture: str) -> None:
    config = model_classes(architecture)[0](**SIZES)
    found = ModelFlops.of(config)
    assert found is not None
    assert found.forward([1, 7, 30]) == sum(slow(s, [40] * 3) for s in (1, 7, 30))


def test_only_the_experts_that_a_token_goes_to_count() -> None:
    config = model_classes("qwen3_moe")[0](**SIZES, **MIXTURE)
    found = ModelFlops.of(config)
    assert found is not None
    assert found.forward([9]) == slow(9, [2 * 12, 40, 2 * 12])


def test_of_a_model_nobody_counted_nothing_is_said() -> None:
    config = model_classes("llama")[0](**SIZES)
    config.model_type = "unheard_of"
    assert ModelFlops.of(config) is None
    assert tflops_metrics(0.0, 0.0, train_s=1.0, log_probs_s=1.0, peak=989.0) == {}


def test_the_utilization_is_of_a_peak_that_is_known_or_is_left_out() -> None:
    """A utilization of an invented peak is worse than none."""
    found = tflops_metrics(2e12, 1e12, train_s=3.0, log_probs_s=0.5, peak=None)
    assert found == {"perf/log_probs_tflops": 2.0, "perf/actor_train_tflops": 2.0}
    found = tflops_metrics(2e12, 0.0, train_s=3.0, log_probs_s=0.5, peak=8.0)
    assert found == {
        "perf/actor_train_tflops": 2.0,
        "perf/mfu_peak_tflops": 8.0,
        "perf/actor_train_mfu": 0.25,
    }
    assert peak_tflops(torch.device("cpu"), torch.bfloat16) is None
    assert all(1 < peak < 10_000 for peak in PEAK_TFLOPS.values())
