"""The embedded engine on a GPU: the same answers as on the CPU, and as transformers there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.engine.kit import (
    drain,
    generate,
    order,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    step,
    tiny_shape,
)
from unit.engine.test_parity import MODELS, load, make_model

from milepost.actors.engine.interface import Finished, Outcome
from milepost.messages.engine import PauseMode

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_log_probs_are_those_of_transformers_on_the_same_device(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Whole rows, and replies sampled in company, at both precisions."""
    make_model(name).to(dtype).save_pretrained(tmp_path)
    family = MODELS[name][0]
    import transformers

    kind = getattr(transformers, f"{family}ForCausalLM")
    model = kind.from_pretrained(tmp_path, dtype=dtype).to(CUDA)
    engine = load(tmp_path, dtype, device=CUDA, prefill_tokens_max=48)
    row = random_row(1, 100, 96)
    limit = 1e-4 if dtype == torch.float32 else 0.15

    def expected(tokens: Any) -> Any:
        ids = torch.from_numpy(tokens.astype(np.int64)).to(CUDA)
        with torch.no_grad():
            table = torch.log_softmax(model(ids[None]).logits[0].float(), dim=-1)
        return table[:-1].gather(1, ids[1:, None])[:, 0].cpu().numpy()

    assert np.abs(score(engine, row).logprobs[0][1:] - expected(row)).max() < limit
    asked = [order(f"r{n}", row[: 60 - 9 * n], tokens_max=20, seed=n) for n in range(5)]
    for each, reply in zip(asked, generate(engine, *asked).values(), strict=True):
        whole = np.concatenate((each.token_ids, reply.token_ids))
        found = expected(whole)[len(each.token_ids) - 1 :]
        assert np.abs(reply.logprobs - found).max() < limit


@pytest.mark.parametrize("mode", list(PauseMode))
def test_turns_and_publications_sample_what_the_cpu_samples(mode: PauseMode) -> None:
    """Prefixes, chunks, compaction and switches: the same seeds give the same tokens."""
    told = []
    for device in (torch.device("cpu"), CUDA):
        engine = serving(device=device, slots=12, running_max=8, prefill_tokens_max=24)
        asked = [
            order(f"r{n}", random_row(n % 3, 20 + n), f"s{n % 4}", tokens_max=4 + 3 * n, seed=n)
            for n in range(10)
        ]
        for each in asked:
            engine.generate(each)
        outcomes: dict[str, Outcome] = {}
        for _ in range(9):
            outcomes |= {outcome.key: outcome for outcome in step(engine)}
        publish(engine, random_weights(tiny_shape(), 1), 1, mode)
        outcomes |= drain(engine)
        told.append(outcomes)
    on_cpu, on_gpu = told
    for key, expected in on_cpu.items():
        found = on_gpu[key]
        assert isinstance(expected, Finished)
        assert isinstance(found, Finished)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        assert found.spans == expected.spans
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)
