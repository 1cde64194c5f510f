"""The whole objective: what has a gradient, what metrics mean, what must be refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from milepost.actors.trainer.losses.metrics import SUMS, LossTokens, finish_metrics
from milepost.actors.trainer.losses.objective import Objective, Terms, policy_terms, sft_terms

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0])
ROLLOUT = torch.tensor([-1.0, -2.5, -0.5, -2.9])


TOKENS = LossTokens(
    weights=torch.full((4,), 0.25),
    advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
    rollout_logprobs=ROLLOUT,
    versions=torch.tensor([3, 2, 3, 1]),
    row_of=torch.tensor([0, 0, 1, 1]),
    num_rows=2,
)


def terms(objective: Objective, logprobs: Tensor, tokens: LossTokens = TOKENS) -> Terms:
    entropy = -(logprobs.exp() * logprobs)
    return policy_terms(objective, logprobs, OLD, entropy, tokens, version=3)


def gradient(objective: Objective, reference: Tensor | None = None) -> Tensor:
    logprobs = OLD.clone().requires_grad_()
    entropy = -(logprobs.exp() * logprobs)
    found = policy_terms(
        objective, logprobs, OLD, entropy, TOKENS, version=3, reference_logprobs=reference
    )
    (result,) = torch.autograd.grad(found.loss, logprobs)
    return result


def metrics_of(found: Terms) -> dict[str, float]:
    return finish_metrics("grpo", found.sums.tolist(), found.maxima.tolist(), num_minibatches=1)


def test_without_correction_the_gradient_at_the_start_is_weight_times_advantage() -> None:
    found = gradient(Objective(estimator="grpo", correction="none"))
    assert found.tolist() == pytest.approx([-0.25, -0.25, 0.25, 0.25])


def test_truncated_importance_sampling_scales_each_token() -> None:
    found = gradient(Objective(estimator="grpo", correction="tis", correction_high=1.2))
    raw = (OLD - ROLLOUT).exp().clamp(max=1.2)
    expected = 0.25 * raw * torch.tensor([-1.0, -1.0, 1.0, 1.0])
    assert torch.allclose(found, expected)


def test_kl_to_a_reference_changes_the_gradient_as_much_as_its_coefficient_says() -> None:
    """A term computed without gradient does nothing, whatever its coefficient."""
    reference = torch.tensor([-1.5, -1.5, -1.5, -1.5])
    base = Objective(estimator="grpo", correction="none")
    without = gradient(base)
    changes = [
        gradient(Objective(estimator="grpo", correction="none", kl_coef=coef), reference) - without
        for coef in (1.0, 10.0)
    ]
    assert changes[0].abs().min() > 1e-3
    assert torch.allclose(10 * changes[0], changes[1], rtol=1e-5)
    with pytest.raises(ValueError, match="without reference log-probs"):
        gradient(Objective(estimator="grpo", kl_coef=0.1))


def test_entropy_bonus_pushes_against_the_loss() -> None:
    base = gradient(Objective(estimator="grpo", correction="none"))
    bonus = gradient(Objective(estimator="grpo", correction="none", entropy_coef=0.5))
    entropy_gradient = -(OLD.exp() * (OLD + 1)) * 0.25
    assert torch.allclose(bonus - base, -0.5 * entropy_gradient, atol=1e-6)


def test_metrics_by_hand() -> None:
    found = metrics_of(terms(Objective(estimator="grpo", correction_high=1.2), OLD.clone()))
    difference = (OLD - ROLLOUT).tolist()
    raw = [math.exp(each) for each in difference]
    assert found["train/train_rollout_logprob_abs_diff"] == pytest.approx(0.6 / 4, rel=1e-5)
    assert found["train/train_rollout_logprob_abs_diff_max"] == pytest.approx(0.5)
    assert found["train/train_rollout_logprob_abs_diff_same_version"] == 0.0
    assert found["train/same_version_ratio"] == 0.5
    assert found["train/staleness/mean"] == pytest.approx(3 / 4)
    assert found["train/staleness/max"] == 2
    assert found["train/tis"] == pytest.approx(sum(raw) / 4, rel=1e-5)
    assert found["train/tis_clipfrac"] == 0.25
    uncorrected = metrics_of(terms(Objective(estimator="grpo", correction="none"), OLD.clone()))
    assert uncorrected["train/tis"] == found["train/tis"]
    assert uncorrected["train/tis_clipfrac"] == 0.0
    assert found["train/tis_abs"] == pytest.approx(sum(abs(w - 1) for w in raw) / 4, rel=1e-5)
    kl = [math.exp(each) - 1 - each for each in difference]
    assert found["train/train_rollout_kl"] == pytest.approx(sum(kl) / 4, rel=1e-5)
    assert found["train/ppo_kl"] == 0.0
    assert found["train/ois"] == 1.0
    assert found["train/pg_clipfrac"] == 0.0
    assert found["train/ess_ratio"] == pytest.approx(1.0)


def test_a_row_counts_once_however_long_it_is() -> None:
    """`rollout/...` are means over rows of means over their tokens; `train/...` are over tokens."""
    tokens = TOKENS._replace(row_of=torch.tensor([0, 0, 0, 2]), num_rows=3)
    found = metrics_of(terms(Objective(estimator="grpo"), OLD.clone(), tokens))

    def obvious(values: Tensor) -> float:
        return ((values[0] + values[1] + values[2]) / 3 + values[3]).item() / 3  # row 1 is empty

    assert found["rollout/log_probs"] == pytest.approx(obvious(OLD))
    assert found["rollout/rollout_log_probs"] == pytest.approx(obvious(ROLLOUT))
    assert found["rollout/advantages"] == pytest.approx(obvious(TOKENS.advantages), abs=1e-6)
    assert found["rollout/entropy"] == pytest.approx(obvious(-(OLD.exp() * OLD)), rel=1e-5)


def test_effective_sample_ratio_falls_when_one_token_dominates() -> None:
    moved = OLD + torch.tensor([0.0, math.log(3.0), 0.0, 0.0])
    found = metrics_of(terms(Objective(estimator="grpo"), moved))
    assert found["train/ess_ratio"] == pytest.approx((16 / (2 * 10) + 1) / 2)


def test_no_metric_about_the_same_version_without_such_tokens() -> None:
    """A mean over nothing is not 0: the guard would read it as perfect agreement."""
    found = metrics_of(
        terms(Objective(estimator="grpo"), OLD.clone(), TOKENS._replace(versions=torch.zeros(4)))
    )
    assert "train/train_rollout_logprob_abs_diff_same_version" not in found
    assert found["train/same_version_ratio"] == 0.0


def test_a_nan_log_prob_is_counted() -> None:
    logprobs = OLD.clone()
    logprobs[2] = math.nan
    found = terms(Objective(estimator="grpo"), logprobs)
    assert found.sums[SUMS.index("nonfinite")] == 1


def test_no_loss_tokens_give_zero_and_a_gradient_to_go_through() -> None:
    """A rank with fewer micro-batches than others still takes part in every backward pass."""
    nothing = torch.zeros(0)
    logprobs = torch.zeros(0, requires_grad=True)
    empty = LossTokens(nothing, nothing, nothing, nothing.long(), nothing.long(), 0)
    found = policy_terms(Objective(estimator="grpo"), logprobs, nothing, nothing, empty, version=0)
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert found.loss.item() == 0.0
    assert found.sums.abs().sum() == 0.0


def test_supervised_loss_is_the_weighted_negative_log_likelihood() -> None:
    logprobs = OLD.clone().requires_grad_()
    found = sft_terms(logprobs, TOKENS)
    assert found.loss.item() == pytest.approx(6.5 / 4)
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.25] * 4
    metrics = finish_metrics("sft", found.sums.tolist(), found.maxima.tolist(), num_minibatches=1)
    assert metrics == {
        "train/loss": pytest.approx(1.625),
        "train/nll": pytest.approx(1.625),
        "train/loss_tokens": 4.0,
    }
