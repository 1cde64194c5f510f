"""Drawing from a distribution, and cutting it: against an obvious sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from unit.engine.naive import distribution

from milepost.actors.engine.embedded.rows import Rows
from milepost.actors.engine.embedded.sampling import Sampled, sample, token_logprobs
from milepost.actors.engine.embedded.sequences import Reply
from milepost.actors.engine.embedded.uniforms import stream_key, uniforms
from milepost.actors.engine.interface import GenerateOrder
from milepost.messages.shared import SamplingParams

VOCABULARY = 20


def draw(
    logits: NDArray[np.float32], params: list[SamplingParams], draws: NDArray[np.float64]
) -> Sampled:
    """One token a row, through the same path as the engine's."""
    rows = Rows(len(params), 8, logits.shape[1])
    for row, sampling in enumerate(params):
        order = GenerateOrder(str(row), "", np.zeros(3, np.int32), sampling)
        rows.occupy(row, Reply("", order.token_ids, order=order), 0, 1)
    cohort = rows.cohort(np.arange(len(params)), torch.device("cpu"))
    return sample(torch.from_numpy(logits), cohort.sampler, draws)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 15, 100]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)


@given(params=st.lists(PARAMS, min_size=1, max_size=6), seed=st.integers(0, 999))
def test_any_mixture_of_parameters_cuts_and_draws_as_the_words_say(
    params: list[SamplingParams], seed: int
) -> None:
    """Rows of one batch must not see each other's temperature, top-k, top-p or min-p."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(len(params), VOCABULARY)) * 3).astype(np.float32)
    draws = rng.random(len(params))
    sampled = draw(logits, params, draws)
    for row, sampling in enumerate(params):
        expected = distribution(logits[row].astype(np.float64), sampling)
        token = int(sampled.ids[row])
        assert abs(sampled.logprobs[row] - np.log(expected[token])) < 1e-5
        if sampling.temperature == 0:
            assert token == expected.argmax()
        else:
            below = expected[:token].sum()
            assert below - 1e-6 <= draws[row] <= below + expected[token] + 1e-6


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.3, "temperature": 2.0}],
    ids=str,
)
def test_frequencies_are_the_probabilities(sampling: dict[str, Any]) -> None:
    """Chi-square over 5,000 draws of consecutive positions of one seed, as a reply makes them."""
    logits = np.random.default_rng(5).normal(size=VOCABULARY).astype(np.float32)
    count = 5_000
    keys = np.full(count, stream_key(11))
    draws = uniforms(keys, np.arange(count))
    rows = np.repeat(logits[None], count, axis=0)
    sampled = draw(rows, [SamplingParams(**sampling)] * count, draws)
    expected = distribution(logits.astype(np.float64), SamplingParams(**sampling)) * count
    found = np.bincount(sampled.ids, minlength=VOCABULARY)
    assert (found[expected == 0] == 0).all(), "a token that was cut off was drawn"
    kept = expected > 0
    statistic = ((found[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    # 19 degrees of freedom at most: 50 is beyond 1 in 10,000.
    assert statistic < 50


def test_equal_logits_are_cut_at_the_lower_ids() -> None:
    """Ties must break the same way on every machine, or the trainer cuts another set."""
    logits = np.zeros((1, VOCABULARY), np.float32)
    for number in range(40):
        sampled = draw(logits, [SamplingParams(top_k=3)], np.array([number / 40]))
        assert sampled.ids[0] in (0, 1, 2)
        assert sampled.logprobs[0] == pytest.approx(-np.log(3))


def test_impossible_tokens_are_never_drawn_at_either_end() -> None:
    """The smallest and the largest random number fall on tokens that have mass."""
    logits = np.full((2, 6), -np.inf, np.float32)
    logits[:, 2] = logits[:, 3] = 0.0
    ends = np.array([0.0, 1.0 - 2.0**-52])
    assert draw(logits, [SamplingParams()] * 2, ends).ids.tolist() == [2, 3]


def test_a_huge_vocabulary_keeps_its_small_tails() -> None:
    """In single precision the sum over 150,000 tokens would round away the last of them."""
    size = 150_000
    logits = np.zeros((1, size), np.float32)
    for number in (0, size // 2, size - 1):
        position = np.array([(number + 0.5) / size])
        assert draw(logits, [SamplingParams()], position).ids[0] == number


def test_nan_logits_give_a_nan_log_prob_and_no_crash() -> None:
    """The row must be recognisable; its neighbours are not touched."""
    logits = np.zeros((2, 5), np.float32)
    logits[0, 3] = np.nan
    sampled = draw(logits, [SamplingParams()] * 2, np.array([0.9, 0.9]))
    assert np.isnan(sampled.logprobs[0])
    assert sampled.ids[1] == 4
    assert np.isfinite(sampled.logprobs[1])


def test_scores_at_temperature_zero_are_those_of_temperature_one() -> None:
    """Greedy replies are recorded at temperature 1; a score of them must agree."""
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([1, 2, 6])
    assert torch.equal(token_logprobs(logits, ids, 0.0), token_logprobs(logits, ids, 1.0))


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    """Whatever else is asked at the same time."""
    keys = np.array([stream_key(seed) for seed in (1, 2, 2**63 + 5, 2)])
    positions = np.array([7, 7, 123456, 8])
    together = uniforms(keys, positions)
    for index in range(4):
        assert uniforms(keys[[index]], positions[[index]])[0] == together[index]
    assert len(set(together.tolist())) == 4


def test_random_numbers_are_spread_evenly_over_seeds_and_over_positions() -> None:
    """Neighbouring seeds (members of a group) must be as independent as neighbouring positions."""
    seeds = np.array([stream_key(seed) for seed in range(4000)])
    over_seeds = uniforms(seeds, np.full(4000, 60))
    over_positions = uniforms(np.full(4000, stream_key(0)), np.arange(4000))
    for numbers in (over_seeds, over_positions):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert ((counts - 80) ** 2 / 80).sum() < 100
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06
