"""LoRA adapters by name, on top of whatever version serves: a server of their own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from contract.kit import (
    DEVICE,
    DTYPE,
    Served,
    Weights,
    assert_close,
    config_json,
    engine_config,
    kinds,
    make_backend,
    manifest_of,
    random_row,
    random_weights,
    sampled_logprobs,
    whole,
)
from safetensors.torch import save_file

from milepost.actors.engine.interface import Finished, Rejected
from milepost.messages.engine import PauseMode

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),
]
KINDS = [kind for kind in kinds() if kind not in {"embedded", "sglang-url"}]
"""The embedded engine has none, and a server at a url was started without."""
RANK, ALPHA = 4, 8
NAMES = ("formal", "terse")
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
RANKS = int(json.loads(os.environ.get("MILEPOST_SGLANG_OPTIONS", "{}")).get("tp-size", 1))
SIZES = {
    "q_proj": (128, 64),
    "v_proj": (64, 64),
    "o_proj": (64, 128),
    "down_proj": (64, 96),
}
"""[out, in] in the model of `config_json`."""


def write_adapter(folder: Path, seed: int) -> Weights:
    """An adapter as PEFT writes it, large enough to be seen; its tensors."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for module in MODULES:
            out, into = SIZES[module.rpartition(".")[2]]
            for half, shape in (("A", (RANK, into)), ("B", (out, RANK))):
                values = torch.empty(shape).normal_(0.0, 0.1, generator=generator)
                name = f"base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"
                tensors[name] = values.to(getattr(torch, DTYPE))
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [module.rpartition(".")[2] for module in MODULES]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
    return tensors


def merged(weights: Weights, adapter: Weights) -> Weights:
    """W + alpha / r * B @ A, in float32."""
    found = dict(weights)
    for name, first in adapter.items():
        if "lora_A" not in name:
            continue
        base = name.removeprefix("base_model.model.").replace(".lora_A", "")
        second = adapter[name.replace("lora_A", "lora_B")].float()
        added = ALPHA / RANK * second @ first.float()
        found[base] = (weights[base].float() + added).to(weights[base].dtype)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=KINDS)
async def adapted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Served, dict[str, Weights]]]:
    """An engine with two adapters, serving version 0; and what the adapters are."""
    if RANKS > 1 and DEVICE == "cpu":
        pytest.skip("refused at start: on a CPU a model in parts takes no adapters")
    folder = tmp_path_factory.mktemp("adapted")
    config: dict[str, Any] = config_json()
    (folder / "config.json").write_text(json.dumps(config))
    adapters = {name: write_adapter(folder / name, n) for n, name in enumerate(NAMES)}
    # Seeds of requests are left out: batch-invariant kernels say nothing of adapters.
    started_with = random_weights(manifest_of(config), 99)
    save_file(dict(started_with), folder / "model.safetensors", metadata={"format": "pt"})
    folders = {name: str(folder / name) for name in NAMES}
    settings = engine_config(request.param, deterministic=False, adapters=folders)
    backend = await asyncio.to_thread(make_backend, folder, settings, folder)
    served = Served(request.param, backend, config, folder)
    await served.publish()
    yield served, adapters
    backend.close()
    assert not served.failure, served.failure


async def told(served: Served, adapter: str, weights: Weights, seed: int) -> None:
    """A reply under this adapter has the log-probs of these weights."""
    row = random_row(seed, 24)
    outcome = await served.outcome(served.ask(row, "one", tokens_max=24, adapter=adapter))
    assert isinstance(outcome, Finished), outcome
    full = whole(row, outcome)
    expected = served.expected(full, weights=weights)
    assert_close(outcome.logprobs, sampled_logprobs(expected, full, len(row)))


async def test_an_adapter_that_nobody_named_is_an_error_of_its_request_alone(
    adapted: tuple[Served, dict[str, Weights]],
) -> None:
    served, _ = adapted
    assert served.backend.facts.adapters == NAMES
    outcome = await served.outcome(served.ask(random_row(1, 8), adapter="unheard"))
    assert isinstance(outcome, Rejected)
    assert "unheard" in outcome.reason
    assert len((await served.reply(random_row(1, 8))).token_ids) == 16


async def test_log_probs_are_of_the_weights_with_the_adapter_in_them(
    adapted: tuple[Served, dict[str, Weights]],
) -> None:
    """And without a name of the policy's own, in the same batch or not."""
    served, adapters = adapted
    for name, adapter in adapters.items():
        await told(served, name, merged(served.weights, adapter), 2)
    await told(served, "", served.weights, 2)
    distance = served.expected(random_row(2, 24)) - served.expected(
        random_row(2, 24), weights=merged(served.weights, adapters["terse"])
    )
    assert abs(distance).max() > 0.5, "an adapter that changes nothing proves nothing"


async def test_prefixes_of_one_never_answer_another(
    adapted: tuple[Served, dict[str, Weights]],
) -> None:
    """Keys and values of an adapter are not the policy's, though the tokens are the same."""
    served, _ = adapted
    row = random_row(3, 40)
    cached: dict[str, list[int]] = {}
    for name in ("", "formal", "terse", "formal", ""):
        key = served.ask(row, "one session", tokens_max=2, adapter=name)
        outcome = await served.outcome(key)
        assert isinstance(outcome, Finished), outcome
        cached.setdefault(name, []).append(outcome.cached_tokens)
    assert cached["terse"] == [0]
    assert cached[""][0] == cached["formal"][0] == 0
    assert min(cached[""][1], cached["formal"][1]) >= 39


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_an_adapter_acts_on_the_version_that_serves(
    adapted: tuple[Served, dict[str, Weights]], mode: PauseMode
) -> None:
    """A publication moves the policy under its adapters, with a reply of one in flight."""
    served, adapters = adapted
    if served.kind == "sglang-old" and mode is PauseMode.IN_PLACE:
        pytest.skip("refused at start: this release cannot say which version sampled a token")
    busy = served.ask(random_row(4, 8), tokens_max=200, adapter="terse")
    await served.publish(mode)
    assert isinstance(await served.outcome(busy), Finished)
    await told(served, "terse", merged(served.weights, adapters["terse"]), 5)
    await told(served, "", served.weights, 5)
