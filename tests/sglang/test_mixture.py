"""A mixture of experts in a real server: the trainer's log-probs, and the routes of every token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.kit import (
    DEVICE,
    MIXTURE,
    PYTHON,
    Served,
    Weights,
    assert_close,
    config_json,
    engine_config,
    make_backend,
    random_row,
    reference,
    sampled_logprobs,
    whole,
)

from milepost.actors.engine.interface import Finished
from milepost.messages.engine import PauseMode

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON, reason="MILEPOST_SGLANG_PYTHON names no interpreter"),
]
LAYERS, EXPERTS_PER_TOKEN = 2, 2


def chosen_by_the_reference(
    served: Served, row: np.ndarray, weights: Weights | None = None
) -> np.ndarray:
    """int64 [T, layers, experts per token], sorted: which experts transformers takes."""
    model: Any = reference(served.folder, served.config, weights or served.weights)
    with torch.inference_mode():
        ids = torch.tensor(row.tolist(), device=DEVICE).unsqueeze(0)
        scores = model(ids, output_router_logits=True).router_logits
    chosen = torch.stack([layer.topk(EXPERTS_PER_TOKEN, -1).indices for layer in scores], 1)
    found: np.ndarray = np.sort(chosen.cpu().numpy(), -1)
    return found


async def test_log_probs_and_routes_are_the_trainers(tmp_path: Path) -> None:
    """C2: a token that went through other experts in the engine is another policy's token."""
    config = config_json(**MIXTURE)
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = engine_config("sglang", deterministic=False)
    backend = await asyncio.to_thread(make_backend, tmp_path, settings, tmp_path, routes=True)
    served = Served("sglang", backend, config, tmp_path)
    try:
        await served.publish()
        row = random_row(1, 20)
        reply = await served.reply(row, tokens_max=60, routes_start=0)
        full = whole(row, reply)
        assert_close(reply.logprobs, sampled_logprobs(served.expected(full), full, 20))
        assert reply.routes is not None
        assert reply.routes.shape == (len(full) - 1, LAYERS, EXPERTS_PER_TOKEN)
        expected = chosen_by_the_reference(served, full)[:-1]
        same = (np.sort(reply.routes, -1) == expected).all(-1).mean()
        assert same == 1 if DEVICE == "cpu" else same > 0.9

        # The next turn: its prefix is cached, and told are only the routes that were not yet.
        prompt = np.concatenate((full, random_row(2, 9)))
        turn = await served.reply(prompt, tokens_max=20, routes_start=len(full) - 1)
        assert turn.routes is not None
        longer = whole(prompt, turn)
        expected = chosen_by_the_reference(served, longer)[len(full) - 1 : -1]
        same = (np.sort(turn.routes, -1) == expected).all(-1).mean()
        assert same == 1 if DEVICE == "cpu" else same > 0.9

        old = served.weights
        busy = served.ask(row, tokens_max=200, routes_start=0)
        await served.publish(PauseMode.RETRACT)
        outcome = await served.outcome(busy)
        assert isinstance(outcome, Finished)
        assert outcome.routes is not None
        ends = {span.version: span.end for span in outcome.spans}
        split = 20 + ends.get(0, 0) - 1
        sampled = whole(row, outcome)
        parts = [chosen_by_the_reference(served, sampled, old)[:split]] if split >= 20 else []
        parts.append(chosen_by_the_reference(served, sampled)[split if parts else 0 : -1])
        same = (np.sort(outcome.routes, -1) == np.concatenate(parts)).all(-1).mean()
        assert same == 1 if DEVICE == "cpu" else same > 0.9
        scored = await served.score(full)
        assert_close(scored.logprobs[0][1:], sampled_logprobs(served.expected(full), full, 1))
    finally:
        backend.close()
    assert not served.failure
