"""From a certified trajectory to what the trainer computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milepost.actors.arrays import from_bulk
from milepost.actors.trainer.losses.advantages import member_advantage
from milepost.configs.run import AlgorithmConfig
from milepost.messages.buffer import Batch
from milepost.messages.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One token row of T tokens, N of them with loss."""

    token_ids: NDArray[Any]
    """int32 [T]"""
    loss_positions: NDArray[Any]
    """int64 [N], ascending, none of them 0."""
    rollout_logprobs: NDArray[Any]
    """float32 [N]"""
    versions: NDArray[Any]
    """int64 [N]"""
    advantage: float = 0.0
    temperature: float = 1.0
    trajectory_loss_tokens: int = 0
    """Tokens with loss in all rows of its trajectory; 0 when it is the only one."""
    routes: NDArray[Any] | None = None
    """uint8 or int16 [T - 1, mixture layers, experts per token], when routes are replayed."""


def read_row(trajectory: Trajectory, algorithm: AlgorithmConfig) -> Row:
    """The row of one trajectory that passed the door."""
    positions = np.flatnonzero(from_bulk(trajectory.loss_mask))
    versions = np.zeros(len(positions), dtype=np.int64)
    for span in trajectory.spans:
        inside = slice(*np.searchsorted(positions, (span.start, span.end)))
        versions[inside] = span.version
    advantage = 0.0
    if algorithm.estimator == "grpo":
        advantage = member_advantage(
            trajectory.reward,
            trajectory.group_rewards,
            normalize_std=algorithm.normalize_std,
            std_epsilon=algorithm.std_epsilon,
        )
    return Row(
        token_ids=from_bulk(trajectory.token_ids),
        loss_positions=positions,
        rollout_logprobs=from_bulk(trajectory.logprobs)[positions],
        versions=versions,
        advantage=advantage,
        temperature=trajectory.certificate.sampling.temperature,
        trajectory_loss_tokens=trajectory.trajectory_loss_tokens,
        routes=_routes(trajectory) if algorithm.replay_routes else None,
    )


def _routes(trajectory: Trajectory) -> NDArray[Any]:
    assert trajectory.routes is not None, f"{trajectory.trajectory_id} passed without routes"
    return from_bulk(trajectory.routes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """This rank's rows of one optimizer step, and that step's normalisers over all ranks."""

    rows: tuple[Row, ...]
    loss_tokens: int
    trajectories: int


def read_batch(batch: Batch, algorithm: AlgorithmConfig) -> tuple[Minibatch, ...]:
    """Split one rank's part of a batch into its optimizer steps.

    Raises:
        ValueError: the batch's own numbers do not fit each other.
    """
    count = len(batch.minibatch_loss_tokens)
    if (
        len(batch.minibatch_of) != len(batch.trajectories)
        or len(batch.minibatch_trajectories) != count
    ):
        raise ValueError(
            f"batch of step {batch.step}: {len(batch.trajectories)} trajectories, "
            f"{len(batch.minibatch_of)} minibatch numbers, {count} token counts, "
            f"{len(batch.minibatch_trajectories)} trajectory counts"
        )
    if any(number >= count for number in batch.minibatch_of):
        raise ValueError(
            f"batch of step {batch.step}: minibatch {max(batch.minibatch_of)} of {count}"
        )
    rows: list[list[Row]] = [[] for _ in range(count)]
    for number, trajectory in zip(batch.minibatch_of, batch.trajectories, strict=True):
        rows[number].append(read_row(trajectory, algorithm))
    sizes = zip(batch.minibatch_loss_tokens, batch.minibatch_trajectories, strict=True)
    return tuple(
        Minibatch(rows=tuple(own), loss_tokens=tokens, trajectories=trajectories)
        for own, (tokens, trajectories) in zip(rows, sizes, strict=True)
    )
