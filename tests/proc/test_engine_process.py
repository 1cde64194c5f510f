"""An engine actor over the real bus: weights come in under load, replies keep their versions."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import numpy as np
import pytest
from proc.engine_process import engine_process
from unit.engine.kit import random_row, random_weights, tiny_shape

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.messages.engine import (
    AbortEpoch,
    EpochAnswer,
    EpochConfirmed,
    Generated,
    GenerateRefused,
    PauseMode,
    PrepareEpoch,
    Score,
    Scored,
    TensorSpec,
)
from milepost.messages.shared import FinishReason

pytestmark = pytest.mark.timeout(60)


async def test_replies_and_publications_go_through_a_real_engine_actor() -> None:
    """The whole life: needs weights, gets them, samples, gets others meanwhile, ends on SIGTERM."""
    weights = [random_weights(tiny_shape(), seed) for seed in range(3)]
    async with engine_process(slots=16, running_max=12) as scene:
        await scene.says_it_needs_weights.wait()
        early = await scene.generate("early", random_row(0, 5))
        assert isinstance(early, GenerateRefused)
        assert early.retry

        confirmed = (await scene.publish(0, weights[0]))[-1]
        assert isinstance(confirmed, EpochConfirmed), confirmed
        replies = [
            scene.generate(f"r{n}", random_row(n, 8), tokens_max=230, seed=n) for n in range(12)
        ]
        for version, mode in ((1, PauseMode.IN_PLACE), (2, PauseMode.RETRACT)):
            answers = await scene.publish(version, weights[version], mode)
            assert isinstance(answers[-1], EpochConfirmed), answers
        for reply in await asyncio.gather(*replies):
            assert isinstance(reply, Generated)
            assert reply.finish_reason is FinishReason.LENGTH
            assert reply.spans[-1].end == len(from_bulk(reply.token_ids)) == 230
            assert np.isfinite(from_bulk(reply.logprobs)).all()

        row = random_row(5, 30)
        score = Score(rows=(to_bulk(row),))
        scored = await scene.ask("publisher", score)
        assert isinstance(scored, Scored)
        assert scored.version == 2
        assert await scene.terminate() == 0
    assert scene.facts["model_type"] == "qwen3"
    assert "serving" in scene.heartbeats[-1].statistics


async def test_a_refused_epoch_leaves_the_engine_serving() -> None:
    """Another model's tensors, and an abort: answered by name, and generation goes on."""
    weights = random_weights(tiny_shape(), 0)
    async with engine_process() as scene:
        await scene.says_it_needs_weights.wait()
        assert isinstance((await scene.publish(0, weights))[-1], EpochConfirmed)
        wrong = PrepareEpoch(
            version=1,
            tensors=(TensorSpec(name="x", dtype="float32", shape=(1,)),),
            num_buckets=1,
        )
        refused = await scene.ask("publisher", wrong)
        assert isinstance(refused, EpochAnswer)
        assert refused.reason == "tensors this model does not have: x"
        aborted = await scene.ask("publisher", AbortEpoch(version=1, reason="refused"))
        assert aborted == EpochAnswer(version=1, ok=True)
        reply = await scene.generate("r", random_row(0, 5), tokens_max=3)
        assert isinstance(reply, Generated)
        assert reply.spans[0].version == 0


def test_the_engine_never_imports_transformers() -> None:
    """It would cost seconds of every start and hundreds of megabytes of every engine."""
    code = (
        "import sys, milepost.actors.engine.run, milepost.actors.engine.embedded.backend\n"
        "print([name for name in ('transformers', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "[]"
