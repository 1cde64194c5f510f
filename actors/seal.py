"""The seal of a trajectory: one hash over everything that its session said of it.

Contracts are re-derived one by one at the trainer's door; the seal finds what no contract speaks
of, a changed reward as much as a provenance. The names of the group's other rewards and its size
are the buffer's to fill in, so they are not under it.
"""

from __future__ import annotations

import msgspec
import xxhash
from msgspec.structs import replace

from milepost.messages.bulk import Bulk
from milepost.messages.trajectory import Trajectory


def seal_of(trajectory: Trajectory) -> str:
    """xxh3-128 hex of the row, its certificate without the seal, and its verdict."""
    hasher = xxhash.xxh3_128()
    arrays: list[Bulk | None] = [
        trajectory.token_ids,
        trajectory.loss_mask,
        trajectory.logprobs,
        trajectory.provenance,
        trajectory.routes,
    ]
    said = (
        trajectory.trajectory_id,
        trajectory.group_id,
        trajectory.prompt_id,
        trajectory.status,
        float(trajectory.reward),
        trajectory.spans,
        trajectory.turns,
        replace(trajectory.certificate, seal=""),
        trajectory.num_sampled_tokens,
        trajectory.row,
        trajectory.num_rows,
        trajectory.trajectory_loss_tokens,
        {name: float(value) for name, value in trajectory.metrics.items()},
        trajectory.metadata,
        [array and (array.dtype, array.shape) for array in arrays],
    )
    hasher.update(msgspec.msgpack.encode(said))
    for array in arrays:
        if array is not None:
            hasher.update(array.data)
    return hasher.hexdigest()


def sealed(trajectory: Trajectory) -> Trajectory:
    """The same, under its seal."""
    certificate = replace(trajectory.certificate, seal=seal_of(trajectory))
    return replace(trajectory, certificate=certificate)
