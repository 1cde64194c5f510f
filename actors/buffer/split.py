"""Cuts one batch of groups into minibatches and ranks.

Groups stay whole within a minibatch and in the order they came. Within a minibatch, trajectories go
to ranks longest first, each to the rank with the fewest tokens so far (Graham's LPT rule: the
fullest rank has at most 4/3 of the best possible).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from milepost.actors.buffer.groups import StoredGroup
from milepost.messages.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Piece:
    """One row's place in the batch."""

    trajectory: Trajectory
    minibatch: int
    loss_tokens: int


def split_batch(
    groups: Sequence[StoredGroup], num_minibatches: int, world_size: int
) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each rank, ordered by minibatch and then as the groups came.

    Args:
        groups: the batch, at least one group for each minibatch.
        num_minibatches: optimizer steps that share the batch.
        world_size: trainer ranks.
    """
    assert num_minibatches <= len(groups), (num_minibatches, len(groups))
    ranks: list[list[tuple[int, Piece]]] = [[] for _ in range(world_size)]
    order = 0
    for minibatch, part in enumerate(cut_evenly(groups, num_minibatches)):
        pieces = []
        for group in part:
            for trajectory, loss_tokens in zip(group.trajectories, group.loss_tokens, strict=True):
                pieces.append((order, Piece(trajectory, minibatch, loss_tokens)))
                order += 1
        for rank, index in enumerate(balance([_tokens(piece) for _, piece in pieces], world_size)):
            ranks[rank].extend(pieces[position] for position in index)
    return tuple(
        tuple(piece for _, piece in sorted(rank, key=lambda item: item[0])) for rank in ranks
    )


def cut_evenly(groups: Sequence[StoredGroup], parts: int) -> list[Sequence[StoredGroup]]:
    """Consecutive parts whose sizes differ by at most one."""
    bounds = [len(groups) * part // parts for part in range(parts + 1)]
    return [groups[start:end] for start, end in pairwise(bounds)]


def balance(sizes: Sequence[int], bins: int) -> list[list[int]]:
    """Indices of `sizes` for each bin, by LPT; ties go to the bin with fewer items, then the first.

    With at least as many items as bins, no bin is empty.
    """
    filled: list[list[int]] = [[] for _ in range(bins)]
    loads = [0] * bins
    for index in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        target = min(range(bins), key=lambda at: (loads[at], len(filled[at]), at))
        filled[target].append(index)
        loads[target] += sizes[index]
    return filled


def _tokens(piece: Piece) -> int:
    return max(1, piece.trajectory.token_ids.shape[0])
