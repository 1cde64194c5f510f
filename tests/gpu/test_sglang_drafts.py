"""Speculative decoding of a real server, drafts from n-grams: no model beside the policy is needed.

MILEPOST_ENGINE_DEVICE=cuda, and the other variables of tests/contract/kit.py
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from contract.kit import (
    DEVICE,
    PYTHON,
    Served,
    assert_close,
    config_json,
    engine_config,
    make_backend,
    random_row,
    sampled_logprobs,
    whole,
)

from milepost.actors.engine.interface import Finished

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(280),
    pytest.mark.skipif(DEVICE == "cpu" or not PYTHON, reason="its kernels need a CUDA device"),
]
VARIABLES = json.loads(os.environ.get("MILEPOST_SGLANG_ENVIRONMENT", "{}"))
FOLDERS = VARIABLES.get("PYTHONPATH", "").split(":")
KERNELS = pytest.mark.skipif(
    VARIABLES.get("SGLANG_IS_FLASHINFER_AVAILABLE") == "false"
    and not any(Path(folder, "flashinfer/data/include").is_dir() for folder in FOLDERS),
    reason="drafts of sampled replies are judged by a kernel that needs the headers of flashinfer",
)
DRAFTS = {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A dense model's engine that guesses ahead, serving version 0."""
    folder = tmp_path_factory.mktemp("drafting")
    config: dict[str, Any] = config_json()
    (folder / "config.json").write_text(json.dumps(config))
    options = {**json.loads(os.environ.get("MILEPOST_SGLANG_OPTIONS", "{}")), **DRAFTS}
    settings = engine_config("sglang", deterministic=False, options=options)
    backend = await asyncio.to_thread(make_backend, folder, settings, folder)
    served = Served("sglang", backend, config, folder)
    await served.publish()
    yield served
    backend.close()
    assert not served.failure, served.failure


def counts(served: Served) -> np.ndarray:
    """Drafted and accepted tokens, passes."""
    told = served.backend.statistics()
    names = ("draft_tokens", "draft_tokens_accepted", "draft_passes")
    return np.array([int(str(told[name])) for name in names])


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=KERNELS)])
async def test_log_probs_are_the_models_own_whoever_guessed_first(
    drafting: Served, temperature: float
) -> None:
    """A row that repeats itself is guessed well; what is accepted is still the model's."""
    before = counts(drafting)
    rows = [np.tile(random_row(80 + n, 6), 4) for n in range(4)]
    keys = [drafting.ask(row, tokens_max=150, temperature=temperature) for row in rows]
    for row, key in zip(rows, keys, strict=True):
        outcome = await drafting.outcome(key)
        assert isinstance(outcome, Finished), outcome
        assert len(outcome.logprobs) == len(outcome.token_ids) == 150
        full = whole(row, outcome)
        expected = sampled_logprobs(drafting.expected(full), full, len(row))
        assert_close(outcome.logprobs, expected)
    proposed, accepted, passes = counts(drafting) - before
    assert passes > 0
    assert 0 <= accepted <= proposed
    if temperature == 0:
        assert accepted > 0, "greedy replies of a small model run in circles, and none was guessed"


async def test_drafts_live_through_a_publication(drafting: Served) -> None:
    """What was guessed under the old weights is judged by those that serve."""
    row = random_row(90, 12)
    busy = drafting.ask(row, tokens_max=200, temperature=0.0)
    await drafting.publish()
    outcome = await drafting.outcome(busy)
    assert isinstance(outcome, Finished), outcome
    assert outcome.spans[-1].end == 200
    fresh = await drafting.reply(row, tokens_max=40, temperature=0.0)
    full = whole(row, fresh)
    assert fresh.spans[0].version == drafting.version
    assert_close(fresh.logprobs, sampled_logprobs(drafting.expected(full), full, 12))
