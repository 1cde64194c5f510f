"""Micro-batches: rows packed one after the other into one sequence, by token count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.actors.trainer.fsdp.attention import Layout, make_layout
from milepost.actors.trainer.losses.aggregate import Aggregation, token_weights
from milepost.actors.trainer.losses.metrics import LossTokens
from milepost.actors.trainer.rows import Minibatch, Row


@dataclass(frozen=True, slots=True)
class PackedRoutes:
    """Experts of T packed tokens. On the device."""

    chosen: Tensor
    """uint8 or int16 [T, mixture layers, experts per token]; 0 for the last token of each row."""
    known: Tensor
    """bool [T], False for the last token of each row: the engine never computed it, no other sees
    it, and it has no loss."""
    num_known: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One micro-batch of T tokens in all, N of them with loss. On the device."""

    input_ids: Tensor
    """int64 [1, T]"""
    position_ids: Tensor
    """int64 [1, T], from 0 in each row."""
    layout: Layout
    predictors: Tensor
    """int64 [N], the packed position that predicts each loss token."""
    targets: Tensor
    """int64 [N]"""
    temperatures: Tensor | None
    """float32 [N]; None when all are 1."""
    tokens: LossTokens
    num_tokens: int
    indices: tuple[int, ...] = ()
    """Of its rows in their minibatch."""
    counts: tuple[int, ...] = ()
    """Loss tokens of each."""
    routes: PackedRoutes | None = None
    """To be replayed; None: routers choose."""


def plan_microbatches(lengths: Sequence[int], tokens_max: int) -> list[list[int]]:
    """Indices of the rows of each micro-batch: longest rows first, each filled until it is full.

    A row longer than `tokens_max` has a micro-batch to itself. The same lengths give the same plan.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    plan: list[list[int]] = []
    room = 0
    for index in order:
        if not plan or lengths[index] > room:
            plan.append([])
            room = tokens_max
        plan[-1].append(index)
        room -= lengths[index]
    return plan


def pack_minibatch(
    minibatch: Minibatch, *, tokens_max: int, aggregation: Aggregation, device: torch.device
) -> list[Packed]:
    """The micro-batches of this rank's part of one optimizer step."""
    rows = minibatch.rows
    plan = plan_microbatches([len(row.token_ids) for row in rows], tokens_max)
    packed: list[Packed] = []
    for indices in plan:
        chosen = [rows[index] for index in indices]
        weights = token_weights(
            [len(row.loss_positions) for row in chosen],
            aggregation=aggregation,
            minibatch_loss_tokens=minibatch.loss_tokens,
            minibatch_trajectories=minibatch.trajectories,
            denominators=[row.trajectory_loss_tokens or len(row.loss_positions) for row in chosen],
        )
        packed.append(replace(pack(chosen, weights, device), indices=tuple(indices)))
    return packed


def pack(rows: Sequence[Row], weights: Tensor, device: torch.device) -> Packed:
    """Lay rows one after the other.

    Args:
        rows: at least one.
        weights: float32 [N], of all their loss tokens in order.
        device: where the tensors go.
    """
    lengths = [len(row.token_ids) for row in rows]
    counts = [len(row.loss_positions) for row in rows]
    starts = np.cumsum([0, *lengths[:-1]])
    ids = np.concatenate([row.token_ids for row in rows]).astype(np.int64)
    positions = np.concatenate([np.arange(length) for length in lengths])
    loss = np.concatenate(
        [row.loss_positions + start for row, start in zip(rows, starts, strict=True)]
    )
    row_of = np.repeat(np.arange(len(rows)), counts)
    advantages = np.array([row.advantage for row in rows], dtype=np.float32)
    temperatures = np.array([row.temperature for row in rows], dtype=np.float32)

    def put(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Packed(
        input_ids=put(ids)[None],
        position_ids=put(positions)[None],
        layout=make_layout(lengths, device),
        predictors=put(loss - 1),
        targets=put(ids[loss]),
        temperatures=None if (temperatures == 1).all() else put(temperatures[row_of]),
        tokens=LossTokens(
            weights=weights.to(device),
            advantages=put(advantages[row_of]),
            rollout_logprobs=put(np.concatenate([row.rollout_logprobs for row in rows])),
            versions=put(np.concatenate([row.versions for row in rows])),
            row_of=put(row_of),
            num_rows=len(rows),
        ),
        num_tokens=len(ids),
        counts=tuple(counts),
        routes=_pack_routes([row.routes for row in rows], device),
    )


def _pack_routes(
    routes: Sequence[NDArray[Any] | None], device: torch.device
) -> PackedRoutes | None:
    """One after the other, each with a place for the last token of its row."""
    told = [each for each in routes if each is not None]
    if not told:
        return None
    assert len(told) == len(routes), f"{len(told)} of {len(routes)} rows have routes"
    lengths = [len(each) + 1 for each in told]
    sizes = (sum(lengths), *told[0].shape[1:])
    chosen, known = np.zeros(sizes, told[0].dtype), np.ones(sizes[0], np.bool_)
    start = 0
    for each, length in zip(told, lengths, strict=True):
        chosen[start : start + length - 1] = each
        start += length
        known[start - 1] = False
    num_known = sizes[0] - len(told)
    return PackedRoutes(
        torch.from_numpy(chosen).to(device, non_blocking=True),
        torch.from_numpy(known).to(device, non_blocking=True),
        num_known,
    )


def empty_microbatch(device: torch.device) -> Packed:
    """One token without loss: keeps this rank in step where others have more micro-batches."""
    nothing = np.zeros(0, dtype=np.int64)
    row = Row(
        token_ids=np.zeros(1, dtype=np.int32),
        loss_positions=nothing,
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        versions=nothing,
    )
    packed = pack([row], torch.zeros(0), device)
    return replace(packed, tokens=packed.tokens._replace(num_rows=0), num_tokens=0)
