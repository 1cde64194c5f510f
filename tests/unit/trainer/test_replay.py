"""Routing replay on a tiny mixture: the rollout's experts, the trainer's own shares of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from unit.trainer.kit import VOCABULARY, batch_of, group, model_classes, routed, write_model

from milepost.actors.arrays import from_bulk
from milepost.actors.routes import RoutesShape
from milepost.actors.trainer.fsdp.learner import Learner
from milepost.actors.trainer.fsdp.model import PackedPolicy, load_model
from milepost.actors.trainer.fsdp.packing import pack
from milepost.actors.trainer.fsdp.replay import NotReplayable, RoutesReplay
from milepost.actors.trainer.fsdp.shard import whole
from milepost.actors.trainer.rows import Minibatch, read_batch
from milepost.configs.run import AlgorithmConfig
from milepost.messages.trajectory import Trajectory

MakeLearner = Callable[..., Learner]
SIZES: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
SHAPE = RoutesShape(num_layers=2, experts_per_token=2, num_experts=6)
REPLAY = AlgorithmConfig(replay_routes=True)
GROUPS = [group("a", (0.0, 1.0, 0.5)), group("b", (1.0, 0.0, 0.0))]
ROUTER = "model.layers.2.mlp.gate.weight"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture") / "tiny"
    return write_model(folder, architecture="qwen3_moe", **SIZES)


def choices(folder: Path, row: Trajectory) -> np.ndarray:
    """[T - 1, layers, experts per token] that the plain model of transformers takes."""
    plain = model_classes("qwen3_moe")[1].from_pretrained(folder, dtype=torch.float32)
    ids = torch.from_numpy(from_bulk(row.token_ids)[: row.turns[-1].end].astype(np.int64))
    with torch.no_grad():
        scores = plain(input_ids=ids[None], output_router_logits=True).router_logits
    chosen = torch.stack([layer.topk(2, -1).indices for layer in scores if layer is not None], 1)
    found: np.ndarray = chosen[:-1].numpy()
    return found


def own_rows(folder: Path) -> list[list[Trajectory]]:
    """Groups whose routes are the model's own choice."""
    return [[routed(row, SHAPE, choices(folder, row)) for row in members] for members in GROUPS]


def foreign_rows() -> list[list[Trajectory]]:
    """Groups whose routes no router of the model would choose."""
    return [[routed(row, SHAPE) for row in members] for members in GROUPS]


def minibatches(
    rows: list[list[Trajectory]], algorithm: AlgorithmConfig = REPLAY, count: int = 1
) -> tuple[Minibatch, ...]:
    return read_batch(batch_of(rows, minibatches=count), algorithm)


@contextmanager
def seen_by_experts(learner: Learner) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Layer and int64 [T, k] of every call of the experts."""
    seen: list[tuple[int, np.ndarray]] = []

    def note(layer: int) -> Callable[..., None]:
        return lambda _, args: seen.append((layer, args[1].cpu().numpy().copy()))

    experts = [
        each for each in learner.policy.module.modules() if type(each).__name__ == "Qwen3MoeExperts"
    ]
    assert len(experts) == SHAPE.num_layers
    handles = [each.register_forward_pre_hook(note(at)) for at, each in enumerate(experts)]
    yield seen
    for handle in handles:
        handle.remove()


def assert_rollouts_experts(seen: list[tuple[int, np.ndarray]], batch: Minibatch) -> None:
    """The experts computed what the rows say and nothing else, in each pass and layer."""
    rows = sorted(batch.rows, key=lambda row: -len(row.token_ids))
    for layer, indices in seen:
        start = 0
        for row in rows:
            assert row.routes is not None
            end = start + len(row.routes)
            np.testing.assert_array_equal(indices[start:end], row.routes[:, layer])
            start = end + 1
        assert start == len(indices)


def gradients(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: whole(each) for name, each in learner.optimizer.state().items()}


def test_replay_of_its_own_choice_changes_nothing(make_learner: MakeLearner, mixture: Path) -> None:
    """Float32, the same weights: what differs then would be replay itself."""
    rows = own_rows(mixture)
    plain = make_learner(folder=mixture, keeps_logprobs=True)
    outcome = plain.train(minibatches(rows, AlgorithmConfig()), 0)
    assert "train/route_mismatch_ratio" not in outcome.metrics
    replaying = make_learner(folder=mixture, keeps_logprobs=True, routes=SHAPE)
    replayed = replaying.train(minibatches(rows), 0)
    assert replayed.metrics["train/route_mismatch_ratio"] == 0
    assert replayed.metrics["train/grad_norm"] == pytest.approx(
        outcome.metrics["train/grad_norm"], rel=1e-5
    )
    for one, other in zip(plain.take_logprobs()[0], replaying.take_logprobs()[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    theirs = gradients(replaying)
    for name, own in gradients(plain).items():
        assert torch.allclose(own, theirs[name], atol=1e-5), name


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_experts_are_exactly_the_rollout_s_in_every_pass(
    compute: torch.dtype, *, checkpointing: bool, make_learner: MakeLearner, mixture: Path
) -> None:
    """Old log-probs, the pass with gradients, and the one that a backward pass computes again."""
    batches = minibatches(foreign_rows(), count=2)
    learner = make_learner(
        folder=mixture, routes=SHAPE, compute=compute, checkpointing=checkpointing
    )
    with seen_by_experts(learner) as seen:
        outcome = learner.train(batches, 0)
    # The second minibatch is scored before any weight moves: one pass more than it is trained in.
    passes = 5 if checkpointing else 3
    assert len(seen) == passes * SHAPE.num_layers
    lengths = [sum(len(row.token_ids) for row in batch.rows) for batch in batches]
    assert lengths[0] == lengths[1], "the two are told apart by the order of their passes"
    scored, trained = seen[:2], seen[2:]
    per_batch = len(trained) // 2
    assert_rollouts_experts([*scored, *trained[per_batch:]], batches[1])
    assert_rollouts_experts(trained[:per_batch], batches[0])
    assert 0.5 < outcome.metrics["train/route_mismatch_ratio"] <= 1
    assert outcome.metrics["train/grad_norm"] > 0


def test_the_share_that_differs_is_counted_token_by_token(
    make_learner: MakeLearner, mixture: Path
) -> None:
    """Against a plain count over sets; order within a token means nothing."""
    groups: list[list[Trajectory]] = []
    differing = places = 0
    for number, members in enumerate(own_rows(mixture)):
        groups.append([])
        for row in members:
            assert row.routes is not None
            own = from_bulk(row.routes)
            chosen = own[:, :, ::-1].copy()
            for at in range(number, len(chosen), 3):
                chosen[at, 1] = [x for x in range(6) if x not in own[at, 1]][:2]
            groups[-1].append(routed(row, SHAPE, chosen))
            # What comes after a token that went elsewhere may be chosen otherwise, too: the count
            # is of layer 1 alone, which nothing comes after but the head.
            differing += len(range(number, len(chosen), 3))
            places += chosen.shape[0] * 2
    learner = make_learner(folder=mixture, routes=SHAPE)
    outcome = learner.train(minibatches(groups), 0)
    assert outcome.metrics["train/route_mismatch_ratio"] == pytest.approx(differing / places)


def test_micro_batches_give_one_gradient(make_learner: MakeLearner, mixture: Path) -> None:
    """Routes go with their rows, however rows are packed."""
    found = []
    for tokens_max in (8192, 40, 1):
        learner = make_learner(folder=mixture, routes=SHAPE, tokens_max=tokens_max)
        outcome = learner.train(minibatches(foreign_rows()), 0)
        found.append((outcome.metrics["train/route_mismatch_ratio"], gradients(learner)))
    for ratio, other in found[1:]:
        assert ratio == found[0][0]
        for name, own in found[0][1].items():
            assert torch.allclose(own, other[name], atol=2e-5), name


def test_checkpointing_changes_no_bit(make_learner: MakeLearner, mixture: Path) -> None:
    """A layer that is computed again in the backward pass goes through the same experts."""
    norms = [
        make_learner(folder=mixture, routes=SHAPE, tokens_max=40, checkpointing=checkpointing)
        .train(minibatches(foreign_rows()), 0)
        .metrics["train/grad_norm"]
        for checkpointing in (False, True)
    ]
    assert norms[0] == norms[1]


@pytest.mark.parametrize("normalize", [True, False])
def test_the_router_learns_through_the_shares_of_the_replayed_experts(
    *, normalize: bool, tmp_path: Path
) -> None:
    """Its gradient is that of a finite difference with the choice held, as the model defines it."""
    sizes = {**SIZES, "norm_topk_prob": normalize}
    folder = write_model(tmp_path / "m", architecture="qwen3_moe", **sizes)
    lm = load_model(folder, gradient_checkpointing=False)
    policy = PackedPolicy(lm, RoutesReplay(lm, SHAPE))
    (batch,) = minibatches(foreign_rows())
    tokens = sum(len(row.loss_positions) for row in batch.rows)
    packed = pack(batch.rows, torch.zeros(tokens), torch.device("cpu"))

    def total() -> torch.Tensor:
        logprobs: torch.Tensor = policy(packed, "none")[0]
        return logprobs.double().sum()

    weight = dict(lm.named_parameters())[ROUTER]
    total().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(weight.shape, generator=generator)
    slope = float((weight.grad * direction).sum())
    step = 1e-2
    with torch.no_grad():
        weight.add_(direction, alpha=step)
        above = total()
        weight.sub_(direction, alpha=2 * step)
        below = total()
    assert slope != 0
    assert float(above - below) / (2 * step) == pytest.approx(slope, rel=2e-2)


def test_rows_without_routes_are_scored_by_the_model_s_own_choice(
    make_learner: MakeLearner, mixture: Path
) -> None:
    """The probe rows of a publication: the engine chooses for itself, and so must the trainer."""
    row = np.random.default_rng(3).integers(0, VOCABULARY, 20).astype(np.int32)
    expected = make_learner(folder=mixture).score([row], 1.0)[0]
    learner = make_learner(folder=mixture, routes=SHAPE, lr=1e-30)
    learner.train(minibatches(foreign_rows()), 0)
    np.testing.assert_allclose(learner.score([row], 1.0)[0], expected, atol=1e-6)


def test_routers_that_return_something_else_are_refused_before_a_share_is_taken_twice(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release whose routers return shares first: softmax over them again would not be noticed."""
    lm = load_model(mixture, gradient_checkpointing=False)
    (router, *_) = [each for each in lm.modules() if type(each).__name__ == "Qwen3MoeTopKRouter"]
    forward = type(router).forward

    def shares_first(self: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, shares, own = forward(self, hidden)
        return torch.softmax(logits, dim=-1), shares, own

    monkeypatch.setattr(type(router), "forward", shares_first)
    with pytest.raises(NotReplayable, match="does not return logits, shares and indices"):
        RoutesReplay(lm, SHAPE)


def test_routers_that_cannot_be_told_are_refused_by_name(mixture: Path, model_folder: Path) -> None:
    with pytest.raises(
        NotReplayable, match="routes of qwen3 cannot be replayed, known are qwen3_m"
    ):
        RoutesReplay(load_model(model_folder, gradient_checkpointing=False), SHAPE)
    fewer = RoutesShape(num_layers=3, experts_per_token=2, num_experts=6)
    with pytest.raises(NotReplayable, match=r"\[\(2, 2, 6\)\]"):
        RoutesReplay(load_model(mixture, gradient_checkpointing=False), fewer)
