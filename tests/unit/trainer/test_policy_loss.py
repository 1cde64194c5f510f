"""Policy loss, corrections and KL estimates, term by term."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from milepost.actors.trainer.losses.correction import CorrectionKind, correction_weights
from milepost.actors.trainer.losses.kl import KLKind, kl_estimate
from milepost.actors.trainer.losses.policy import policy_loss


def loss_of(log_ratio: float, advantage: float, dual_clip: float = 0.0) -> tuple[float, float]:
    """Loss, and its derivative by the log-prob."""
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    terms = policy_loss(
        logprobs,
        torch.zeros(1),
        torch.tensor([advantage]),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=dual_clip,
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    return terms.loss.item(), gradient.item()


@given(
    ratio=st.floats(0.05, 20),
    advantage=st.floats(-3, 3),
    dual_clip=st.sampled_from([0.0, 1.5, 3.0]),
)
def test_loss_equals_the_slow_obvious_one(ratio: float, advantage: float, dual_clip: float) -> None:
    clipped = min(max(ratio, 0.8), 1.28)
    expected = max(-ratio * advantage, -clipped * advantage)
    if dual_clip and advantage < 0:
        expected = min(expected, -dual_clip * advantage)
    loss, _ = loss_of(math.log(ratio), advantage, dual_clip)
    assert loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_at_ratio_one_the_gradient_is_minus_the_advantage() -> None:
    assert loss_of(0.0, 1.5) == pytest.approx((-1.5, -1.5))


def test_clip_higher_lets_a_good_token_rise_further_than_it_may_fall() -> None:
    """Between 1.2 and 1.28 the symmetric clip would have no gradient any more."""
    assert loss_of(math.log(1.25), 1.0)[1] == pytest.approx(-1.25, rel=1e-5)
    assert loss_of(math.log(1.29), 1.0)[1] == 0.0
    assert loss_of(math.log(0.79), -1.0)[1] == 0.0
    assert loss_of(math.log(0.81), -1.0)[1] == pytest.approx(0.81, rel=1e-5)


def test_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    """Ratio 5 on a bad token costs 5 without the bound, and has a gradient to match."""
    assert loss_of(math.log(5.0), -1.0) == pytest.approx((5.0, 5.0), rel=1e-5)
    assert loss_of(math.log(5.0), -1.0, dual_clip=3.0) == pytest.approx((3.0, 0.0))


def test_clip_fraction_does_not_count_the_dual_clip() -> None:
    terms = policy_loss(
        torch.tensor([math.log(5.0), math.log(1.5), 0.0]),
        torch.zeros(3),
        torch.tensor([-1.0, 1.0, 1.0]),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=3.0,
    )
    assert terms.clipped.tolist() == [False, True, False]


@pytest.mark.parametrize("strange", [1000.0, -1000.0, math.inf, -math.inf, math.nan])
def test_a_strange_ratio_of_a_token_without_advantage_costs_nothing(strange: float) -> None:
    """exp(1000) is infinite, and infinity times an advantage of 0 would be NaN for the batch."""
    loss, gradient = loss_of(strange, 0.0)
    assert loss == 0.0
    assert gradient == 0.0


def weights(raw: Tensor, kind: CorrectionKind, low: float, high: float) -> list[float]:
    found = correction_weights(raw.log(), torch.zeros_like(raw), kind=kind, low=low, high=high)
    assert torch.allclose(found.raw, raw)
    return [round(value, 5) for value in found.weights.tolist()]


def test_truncation_clamps_and_clip_or_pop_leaves_out() -> None:
    raw = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0])
    assert weights(raw, "tis", 0.0, 2.0) == [0.25, 0.5, 1.0, 2.0, 2.0]
    assert weights(raw, "tis", 0.5, 2.0) == [0.5, 0.5, 1.0, 2.0, 2.0]
    assert weights(raw, "clip_or_pop", 0.4, 3.0) == [0, 0.5, 1.0, 2.0, 0]
    assert weights(raw, "none", 0.5, 2.0) == [1.0] * 5


def test_corrections_carry_no_gradient() -> None:
    """They weigh the loss; they are not part of what is optimised."""
    old = torch.zeros(3, requires_grad=True)
    found = correction_weights(old, torch.ones(3), kind="tis", low=0.0, high=2.0)
    assert not found.weights.requires_grad


@given(policy=st.floats(-12, -0.01), base=st.floats(-12, -0.01))
def test_kl_estimates_by_their_formulas(policy: float, base: float) -> None:
    difference = policy - base
    expected: dict[KLKind, float] = {
        "k1": difference,
        "k2": difference**2 / 2,
        "k3": min(math.exp(-difference) - 1 + difference, 10.0),
    }
    for kind, value in expected.items():
        found = kl_estimate(torch.tensor([policy]), torch.tensor([base]), kind)
        assert found.item() == pytest.approx(value, rel=1e-3, abs=2e-5)


@pytest.mark.parametrize("difference", [500.0, -500.0])
def test_k3_of_one_mad_token_stays_bounded(difference: float) -> None:
    found = kl_estimate(torch.tensor([difference]), torch.zeros(1), "k3").item()
    assert math.isfinite(found)
    assert abs(found) <= 10.0


def test_k1_and_k3_agree_with_the_true_divergence_in_expectation() -> None:
    """Both are unbiased: over a small vocabulary the expectation can be written out."""
    policy = torch.tensor([0.5, 0.3, 0.2]).log()
    base = torch.tensor([0.2, 0.2, 0.6]).log()
    true = (policy.exp() * (policy - base)).sum().item()
    for kind in ("k1", "k3"):
        estimate = (policy.exp() * kl_estimate(policy, base, kind)).sum().item()
        assert estimate == pytest.approx(true, rel=1e-5)
