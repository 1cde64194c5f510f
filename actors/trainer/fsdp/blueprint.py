"""What every version of a policy consists of, known before a byte of one is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from milepost.actors.trainer.fsdp.model import hugging_face_name
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.weights.bucketing import buckets_of

Allocate: TypeAlias = Callable[[int], memoryview]
"""Number of bytes -> writable memory of exactly so many, aligned for any dtype."""


def ordinary_memory(nbytes: int) -> memoryview:
    """Memory of this process alone."""
    data: memoryview = torch.empty(nbytes, dtype=torch.uint8).numpy().data
    return data


def turned_back(policy: ShardedPolicy, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the names and in the shapes that checkpoints have.

    What lies in memory as it does on disk stays the very same tensor; fused experts are cut.

    Args:
        policy: the model's.
        tensors: parameters by Hugging Face name; of a fused group all or none.
    """
    from transformers.core_model_loading import revert_weight_conversion

    turned: dict[str, Tensor] = revert_weight_conversion(policy.module.lm, tensors)
    return turned


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Names, shapes and buckets of every version.

    Attributes:
        dtype: of every tensor.
        shapes: by Hugging Face name, in sorted order.
        buckets: names of each, in the order of their journey.
        kept: parameters that a checkpoint has as they are: name in memory -> name in a checkpoint.
    """

    dtype: torch.dtype
    shapes: Mapping[str, tuple[int, ...]]
    buckets: tuple[tuple[str, ...], ...]
    kept: Mapping[str, str]

    @classmethod
    def of(cls, policy: ShardedPolicy, dtype: torch.dtype, *, bytes_max: int) -> Blueprint:
        """Tensors without bytes go the way that parameters will go.

        Experts are gathered from the shards of one tensor at a time, as everything is: their degree
        is 1 here, however many ranks the engines spread them over.

        Args:
            policy: whole or sharded.
            dtype: of versions.
            bytes_max: of a bucket; only a unit that is larger has a larger one, see `buckets_of`.
        """
        held = {
            hugging_face_name(name): torch.empty(parameter.shape, dtype=dtype, device="meta")
            for name, parameter in sorted(policy.parameters().items())
        }
        turned = turned_back(policy, dict(held))
        names = {id(tensor): name for name, tensor in turned.items()}
        shapes = {name: tuple(turned[name].shape) for name in sorted(turned)}
        sizes = {name: prod(shape) * dtype.itemsize for name, shape in shapes.items()}
        return cls(
            dtype=dtype,
            shapes=shapes,
            buckets=tuple(tuple(cut) for cut in buckets_of(sizes, bytes_max=bytes_max)),
            kept={name: names[id(tensor)] for name, tensor in held.items() if id(tensor) in names},
        )
