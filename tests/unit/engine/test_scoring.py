"""Scores, alternatives, other precisions: what stands beside sampled tokens."""

from __future__ import annotations

import numpy as np
import torch
from unit.engine.kit import (
    drain,
    generate,
    make_engine,
    manifest,
    order,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    tiny_shape,
)

from milepost.actors.arrays import to_bulk
from milepost.actors.engine.interface import Rejected
from milepost.messages.engine import PauseMode


def test_top_log_probs_stand_beside_the_tokens() -> None:
    """Distillation and debugging read the alternatives of each position."""
    engine = serving()
    asked = order("a", random_row(0, 5), tokens_max=6, top_logprobs=4)
    plain = order("b", random_row(1, 5), tokens_max=6)
    replies = generate(engine, asked, plain)
    top_ids, top = replies["a"].top_token_ids, replies["a"].top_logprobs
    assert top_ids is not None
    assert top is not None
    assert top_ids.shape == top.shape == (6, 4)
    assert (np.diff(top, axis=1) <= 0).all()
    for token, logprob, ids, values in zip(
        replies["a"].token_ids, replies["a"].logprobs, top_ids, top, strict=True
    ):
        if token in ids:
            assert values[ids.tolist().index(token)] == logprob
        else:
            assert logprob <= values[-1]
    assert replies["b"].top_token_ids is None


def test_scores_equal_the_log_probs_of_generation() -> None:
    """One engine must not disagree with itself: the canary compares exactly these."""
    engine = serving(seed=4)
    asked = order("a", random_row(0, 8), tokens_max=20, temperature=0.8, seed=2)
    reply = generate(engine, asked)["a"]
    row = np.concatenate((asked.token_ids, reply.token_ids))
    for use_cache in (False, True, True):
        scored = score(engine, row, temperature=0.8, use_cache=use_cache).logprobs[0]
        assert scored.dtype == np.float32
        assert scored[0] == 0
        np.testing.assert_allclose(scored[8:], reply.logprobs, atol=1e-5)


def test_scoring_with_the_cache_reads_the_cache() -> None:
    """The canary finds stale keys only if a warm score really depends on the cached ones."""
    engine = serving()
    row = random_row(0, 30)
    cold = score(engine, row, use_cache=True).logprobs[0]
    engine._scheduler._cache.values[:, :, 5] += 1.0
    warm = score(engine, row, use_cache=True).logprobs[0]
    assert np.abs(warm[:6] - cold[:6]).max() < 1e-6
    assert np.abs(warm[6:] - cold[6:]).max() > 1e-3
    assert np.abs(score(engine, row).logprobs[0] - cold).max() < 1e-5


def test_many_rows_of_different_lengths_are_scored_in_chunks() -> None:
    """Rows longer than one pass, more rows than slots, one row of one token."""
    engine = serving(prefill_tokens_max=16, slots=4, running_max=3)
    rows = [random_row(n, length) for n, length in enumerate((1, 50, 17, 33, 2, 64, 16))]
    scored = score(engine, *rows)
    assert scored.version == 0
    for row, logprobs in zip(rows, scored.logprobs, strict=True):
        alone = score(serving(), row).logprobs[0]
        np.testing.assert_allclose(logprobs, alone, atol=1e-5)


def test_nan_weights_reject_requests_and_leave_no_nan_behind() -> None:
    """One broken version must not poison rows that later versions use."""
    shape = tiny_shape()
    engine = make_engine(shape)
    broken = random_weights(shape, 0)
    broken["model.norm.weight"][3] = np.nan
    publish(engine, broken, 0)
    engine.generate(order("a", random_row(0, 5)))
    outcome = drain(engine)["a"]
    assert outcome == Rejected("a", "log-probs are NaN under version 0")
    publish(engine, random_weights(shape, 1), 1)
    for n in range(10):
        reply = generate(engine, order(f"b{n}", random_row(n, 5), tokens_max=3))[f"b{n}"]
        assert np.isfinite(reply.logprobs).all()


def test_bfloat16_samples_close_to_float32() -> None:
    """The same code serves half the memory; rounding is all that may differ."""
    shape = tiny_shape()
    row = random_row(0, 40)
    half = make_engine(shape, dtype=torch.bfloat16)
    half.staging.open(manifest(shape, torch.bfloat16))
    for name, values in random_weights(shape, 0).items():
        bits = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
        half.staging.write((name,), (to_bulk(bits, "bfloat16"),))
    half.switch(0, PauseMode.RETRACT)
    low, high = score(half, row).logprobs[0], score(serving(shape), row).logprobs[0]
    assert np.abs(low - high).max() < 0.2
    reply = generate(half, order("a", row, tokens_max=5))["a"]
    again = score(half, np.concatenate((row, reply.token_ids))).logprobs[0][40:]
    assert np.abs(again - reply.logprobs).max() < 0.1
