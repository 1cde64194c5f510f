"""The learner on a tiny model: one gradient however split, old log-probs, guards, determinism."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from unit.trainer.kit import batch_of, group, recorded, trajectory, write_model

from milepost.actors.trainer.fsdp.learner import BatchDiffers, Learner
from milepost.actors.trainer.fsdp.packing import pack_minibatch
from milepost.actors.trainer.fsdp.shard import whole
from milepost.actors.trainer.losses.aggregate import Aggregation
from milepost.actors.trainer.losses.objective import Objective
from milepost.actors.trainer.rows import Minibatch, read_batch, read_row
from milepost.configs.run import AlgorithmConfig
from milepost.messages.trajectory import Trajectory

MakeLearner = Callable[..., Learner]
GRPO = AlgorithmConfig()
SFT = AlgorithmConfig(estimator="sft")

GROUPS = [group("a", (0.0, 1.0, 0.5, 1.0)), group("b", (1.0, 0.0, 0.0, 0.0))]


def minibatches(
    groups: Sequence[Sequence[Trajectory]] = GROUPS,
    algorithm: AlgorithmConfig = GRPO,
    count: int = 1,
) -> tuple[Minibatch, ...]:
    return read_batch(batch_of(groups, minibatches=count), algorithm)


def parameters(learner: Learner) -> dict[str, Tensor]:
    return {
        name: whole(each.detach()).clone() for name, each in learner.policy.parameters().items()
    }


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def logprobs(learner: Learner, minibatch: Minibatch) -> Tensor:
    """Of the loss tokens, in the order the learner packs them."""
    packs = pack_minibatch(
        minibatch, tokens_max=8192, aggregation="per_token", device=torch.device("cpu")
    )
    with torch.no_grad():
        return torch.cat([learner.policy.module(each, "none")[0] for each in packs])


@pytest.mark.parametrize("aggregation", ["per_token", "per_sample"])
@pytest.mark.parametrize("algorithm", [GRPO, SFT], ids=["grpo", "sft"])
def test_one_two_or_many_micro_batches_give_one_gradient(
    aggregation: Aggregation, algorithm: AlgorithmConfig, make_learner: MakeLearner
) -> None:
    """The very bug of mean-of-means: the same batch in 1, 2, 4 or 8 pieces must move as one."""
    groups = GROUPS
    if algorithm.estimator == "sft":
        groups = [[recorded(each) for each in members] for members in GROUPS]
    gradients = []
    norms = []
    for tokens_max in (8192, 80, 40, 1):
        learner = make_learner(
            objective=Objective(estimator=algorithm.estimator),
            aggregation=aggregation,
            tokens_max=tokens_max,
        )
        outcome = learner.train(minibatches(groups, algorithm), 0)
        norms.append(outcome.metrics["train/grad_norm"])
        # After one step the first moment is the clipped gradient, a tenth of it.
        gradients.append({name: whole(each) for name, each in learner.optimizer.state().items()})
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)
    for other in gradients[1:]:
        assert largest_difference(gradients[0], other) < 1e-6


def test_old_log_probs_of_the_first_minibatch_are_those_of_its_own_forward_bit_for_bit(
    make_learner: MakeLearner,
) -> None:
    """That is why only later minibatches need a pass of their own."""
    learner = make_learner()
    (packed,) = pack_minibatch(
        minibatches()[0], tokens_max=8192, aggregation="per_token", device=torch.device("cpu")
    )
    with torch.no_grad():
        before, _ = learner.policy.module(packed, "none")
    with_gradient, _ = learner.policy.module(packed, "metric")
    assert torch.equal(before, with_gradient.detach())


def test_with_no_advantage_the_first_update_has_ratio_one(make_learner: MakeLearner) -> None:
    """Zero reward, one update: a log-prob that differs from its old self would show as KL."""
    flat = [group("a", (0.5, 0.5, 0.5))]
    learner = make_learner()
    before = parameters(learner)
    outcome = learner.train(minibatches(flat), 0)
    assert abs(outcome.metrics["train/ppo_kl"]) < 1e-9
    assert outcome.metrics["train/ois"] == pytest.approx(1.0, abs=1e-9)
    assert outcome.metrics["train/pg_clipfrac"] == 0.0
    assert outcome.metrics["train/grad_norm"] == 0.0
    assert not outcome.spread
    assert largest_difference(before, parameters(learner)) == 0.0


def test_in_the_second_minibatch_the_ratio_leaves_one(make_learner: MakeLearner) -> None:
    """`logp - logp.detach()` would be 1 for ever, and no clip would ever act."""
    groups = [group("a", (0.0, 1.0, 0.0)), group("a", (0.0, 1.0, 0.0))]
    learner = make_learner(lr=0.1)
    outcome = learner.train(minibatches(groups, count=2), 0)
    assert abs(outcome.metrics["train/ois"] - 1) > 1e-3
    assert outcome.metrics["train/pg_clipfrac"] > 0
    assert outcome.metrics["train/optimizer_step"] == 2.0


def test_the_second_minibatch_is_measured_against_the_weights_the_batch_began_with(
    make_learner: MakeLearner,
) -> None:
    first, second = minibatches(count=2)
    learner = make_learner()
    old = logprobs(learner, second)
    learner.train((first,), 0)
    moved = logprobs(learner, second)
    fresh = make_learner()
    outcome = fresh.train((first, second), 0)
    tokens = first.loss_tokens + second.loss_tokens
    expected = float((old - moved).double().sum()) / tokens
    assert outcome.metrics["train/ppo_kl"] == pytest.approx(expected, rel=1e-3, abs=1e-7)


def test_sharding_over_one_rank_changes_no_bit(make_learner: MakeLearner) -> None:
    """So a single rank may leave it out."""
    results = []
    for sharding in ("none", "whole", "layered"):
        learner = make_learner(sharding=sharding, tokens_max=60)
        learner.train(minibatches(count=2), 0)
        results.append(parameters(learner))
    assert largest_difference(results[0], results[1]) == 0.0
    assert largest_difference(results[0], results[2]) == 0.0


def test_gradient_checkpointing_changes_no_bit(make_learner: MakeLearner) -> None:
    one, other = make_learner(), make_learner(checkpointing=True, sharding="layered")
    for learner in (one, other):
        learner.train(minibatches(count=2), 0)
    assert largest_difference(parameters(one), parameters(other)) == 0.0


def test_the_same_seed_gives_the_same_bits(make_learner: MakeLearner) -> None:
    one, other = make_learner(), make_learner()
    for learner in (one, other):
        learner.train(minibatches(count=2), 0)
    assert largest_difference(parameters(one), parameters(other)) == 0.0


def test_half_precision_moves_float32_weights(make_learner: MakeLearner) -> None:
    learner = make_learner(compute=torch.bfloat16)
    before = parameters(learner)
    outcome = learner.train(minibatches(), 0)
    after = parameters(learner)
    assert math.isfinite(outcome.metrics["train/grad_norm"])
    assert all(each.dtype == torch.float32 for each in after.values())
    assert largest_difference(before, after) > 1e-3


def test_supervised_training_lowers_its_loss(make_learner: MakeLearner) -> None:
    groups = [[recorded(each) for each in members] for members in GROUPS]
    learner = make_learner(objective=Objective(estimator="sft"))
    losses = [
        learner.train(minibatches(groups, SFT), step).metrics["train/nll"] for step in range(12)
    ]
    assert losses[-1] < 0.7 * losses[0]
    assert learner.moved


def test_a_good_reply_becomes_likelier_and_a_bad_one_less(make_learner: MakeLearner) -> None:
    members = group("a", (1.0, 0.0))
    learner = make_learner(lr=3e-3)
    good = minibatches([[members[0]]])[0]
    bad = minibatches([[members[1]]])[0]
    before = logprobs(learner, good).sum(), logprobs(learner, bad).sum()
    learner.train(minibatches([members]), 0)
    assert logprobs(learner, good).sum() > before[0]
    assert logprobs(learner, bad).sum() < before[1]


def test_normalisers_that_are_not_those_of_the_rows_are_refused(
    make_learner: MakeLearner,
) -> None:
    """A wrong count scales the gradient, and nothing else would show it."""
    (minibatch,) = minibatches()
    wrong = replace(minibatch, loss_tokens=minibatch.loss_tokens + 1)
    with pytest.raises(BatchDiffers, match=f"says {wrong.loss_tokens} loss tokens"):
        make_learner().train((wrong,), 0)


def test_a_gradient_that_is_not_finite_moves_nothing_and_says_so(
    make_learner: MakeLearner,
) -> None:
    (minibatch,) = minibatches()
    rows = list(minibatch.rows)
    rows[0] = replace(rows[0], advantage=math.inf)
    learner = make_learner()
    before = parameters(learner)
    outcome = learner.train((replace(minibatch, rows=tuple(rows)),), 0)
    assert "gradient norm is nan" in outcome.tripped
    assert largest_difference(before, parameters(learner)) == 0.0


def test_weights_that_are_not_finite_are_named_by_their_log_probs(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner()
    with torch.no_grad():
        next(iter(learner.policy.parameters().values())).fill_(math.nan)
    outcome = learner.train(minibatches(), 0)
    assert "log-probs of" in outcome.tripped


def test_rows_take_log_probs_and_versions_only_where_there_is_loss() -> None:
    """What stands in other places, NaN included, never reaches a tensor."""
    logprobs = np.linspace(-2.0, -1.0, 15)
    row = read_row(trajectory("a", 1, logprobs=logprobs, version=4), GRPO)
    assert row.loss_positions.tolist() == [5, 6, 7, 8, 12, 13, 14]
    assert row.rollout_logprobs.tolist() == pytest.approx(logprobs[row.loss_positions].tolist())
    assert row.versions.tolist() == [4] * 7
    assert row.advantage == pytest.approx(0.5 / (math.sqrt(0.5) + GRPO.std_epsilon))


def test_scores_are_log_probs_of_whole_rows_under_the_present_weights(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner()
    (minibatch,) = minibatches([[trajectory("a", 1)]])
    row = minibatch.rows[0]
    (scored,) = learner.score([row.token_ids], 1.0)
    assert scored.shape == row.token_ids.shape
    assert scored[0] == 0.0
    expected = logprobs(learner, minibatch).numpy()
    assert np.allclose(scored[row.loss_positions], expected, atol=1e-6)
    (warm,) = learner.score([row.token_ids], 2.0)
    assert not np.allclose(warm, scored)


def test_log_probs_of_every_next_token_are_those_that_scores_give_one_by_one(
    make_learner: MakeLearner,
) -> None:
    """A session's turn is compared with them, whichever token it samples."""
    learner = make_learner()
    row = np.arange(3, 9, dtype=np.int32)
    every = learner.next_logprobs(row)
    assert every.shape == (learner.policy.module.vocabulary,)
    assert math.isclose(float(np.exp(every).sum()), 1.0, rel_tol=1e-5)
    for token in (0, 5, len(every) - 1):
        (scored,) = learner.score([np.append(row, np.int32(token))], 1.0)
        assert abs(scored[-1] - every[token]) < 1e-6


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_only_passes_that_train_drop_out(
    make_learner: MakeLearner, architecture: str, tmp_path: Path
) -> None:
    """A score of a random network is none that an engine, or a later pass, could agree with."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    sizes: dict[str, Any] = experts if architecture == "qwen3_moe" else {}
    plain, dropping = (
        make_learner(
            folder=write_model(
                tmp_path / str(rate), architecture=architecture, attention_dropout=rate, **sizes
            ),
            lr=1e-12,
            keeps_logprobs=True,
        )
        for rate in (0.0, 0.5)
    )
    row = np.arange(3, 15, dtype=np.int32)
    assert np.array_equal(dropping.score([row], 1.0)[0], plain.score([row], 1.0)[0])
    assert np.array_equal(dropping.next_logprobs(row), plain.next_logprobs(row))
    for learner in (dropping, plain):
        learner.train(minibatches(count=2), 0)
    (first, second), (first_plain, second_plain) = (
        [np.concatenate(rows) for rows in learner.take_logprobs()] for learner in (dropping, plain)
    )
    assert np.array_equal(second, second_plain), "computed before any weight moved"
    assert not np.allclose(first, first_plain), "of the pass that trains"


def test_a_minibatch_without_rows_is_a_step_that_moves_nothing(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner()
    before = parameters(learner)
    outcome = learner.train((Minibatch(rows=(), loss_tokens=0, trajectories=0),), 0)
    assert not outcome.tripped
    assert not learner.moved
    assert largest_difference(before, parameters(learner)) == 0.0


@pytest.mark.parametrize("tokens_max", [8192, 40, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_log_probs_of_each_row_are_kept_as_they_were_before_the_step(
    tokens_max: int, count: int, make_learner: MakeLearner
) -> None:
    """However rows are packed, each gets its own back, in the order of the batch."""
    batch = minibatches(count=count)
    learner = make_learner(tokens_max=tokens_max, keeps_logprobs=True)
    before = [
        [learner.score([row.token_ids], 1.0)[0][row.loss_positions] for row in each.rows]
        for each in batch
    ]
    learner.train(batch, 0)
    kept = learner.take_logprobs()
    assert [len(rows) for rows in kept] == [len(each.rows) for each in batch]
    for rows, expected in zip(kept, before, strict=True):
        for row, own in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row, own, atol=1e-5)
    assert learner.take_logprobs() == []
