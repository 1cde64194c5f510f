"""A version's weights as the engines load them: whole tensors under Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from milepost.actors.arrays import to_bulk
from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.model import hugging_face_name
from milepost.actors.trainer.fsdp.shard import ShardedPolicy, whole
from milepost.actors.weights.bucketing import buckets_of
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec
from milepost.messages.publisher import BucketReady

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROBE_SEED: Final = 20240229


class Weights(NamedTuple):
    """One version, cut into buckets. Copies: the optimizer may go on at once.

    Tensors and digests are in the order of their names, buckets in that of their journey.
    """

    tensors: tuple[TensorSpec, ...]
    buckets: tuple[BucketReady, ...]
    digest: str
    """xxh3-128 hex over name (UTF-8) and bytes of each tensor, in order."""
    tensor_digests: tuple[str, ...]
    """xxh3-128 hex over the bytes of each tensor."""


def gathered(policy: ShardedPolicy) -> Iterator[tuple[str, Tensor]]:
    """Every parameter under its Hugging Face name, in the order of ours; collective.

    Whole, on the device of the rank, in the dtype of the optimizer; perhaps the parameter itself.
    """
    for name, parameter in sorted(policy.parameters().items()):
        yield hugging_face_name(name), whole(parameter.detach())


def export_tensors(
    policy: ShardedPolicy, group: RankGroup, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Whole copies of every parameter on the CPU, by Hugging Face name in sorted order.

    Collective. Tied parameters come once, under the name they have first in the model. Models whose
    layout in memory differs from their checkpoints (fused experts) are turned back.

    Returns:
        On rank 0 all tensors, elsewhere nothing.
    """
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, full in gathered(policy):
            if group.leads:
                found[name] = full.to("cpu", dtype, copy=True)
    if not group.leads:
        return {}
    turned = turned_back(policy, found)
    return {name: turned[name].contiguous() for name in sorted(turned)}


def turned_back(policy: ShardedPolicy, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as checkpoints have them: fused experts apart, others as they are."""
    from transformers.core_model_loading import revert_weight_conversion

    turned: dict[str, Tensor] = revert_weight_conversion(policy.module.lm, found)
    return turned


def cut_buckets(tensors: dict[str, Tensor], *, version: int, bytes_max: int) -> Weights:
    """Buckets of about `bytes_max` bytes, cut by `buckets_of`.

    Experts are gathered from the shards of one tensor at a time, as everything is: their degree
    is 1 here, however many ranks the engines spread them over.
    """
    bulks = {name: tensor_bulk(tensor) for name, tensor in tensors.items()}
    sizes = {name: bulk.nbytes for name, bulk in bulks.items()}
    cut = buckets_of(sizes, bytes_max=bytes_max)
    buckets = tuple(
        BucketReady(
            version=version,
            index=index,
            names=tuple(names),
            tensors=tuple(bulks[name] for name in names),
        )
        for index, names in enumerate(cut)
    )
    specs = tuple(
        TensorSpec(name=name, dtype=bulk.dtype, shape=bulk.shape) for name, bulk in bulks.items()
    )
    each = tuple(xxhash.xxh3_128_hexdigest(bulk.data) for bulk in bulks.values())
    return Weights(specs, buckets, digest(bulks.items()), each)


def digest(named: Iterable[tuple[str, Bulk]]) -> str:
    """xxh3-128 hex over name (UTF-8) and bytes of each tensor, in order."""
    hasher = xxhash.xxh3_128()
    for name, bulk in named:
        hasher.update(name.encode())
        hasher.update(bulk.data)
    return hasher.hexdigest()


def tensor_bulk(tensor: Tensor) -> Bulk:
    """A contiguous CPU tensor as a bulk that shares its memory."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:
        return to_bulk(tensor.view(torch.uint16).numpy(), name)
    return to_bulk(tensor.numpy(), name)


def probe_rows(vocabulary: int, *, rows: int = 2, length: int = 32) -> list[NDArray[np.int32]]:
    """Fixed token rows for the canary of every version: the same in every process and run.

    Args:
        vocabulary: ids are drawn from [0, vocabulary).
        rows: how many.
        length: tokens of each.
    """
    generator = np.random.default_rng(PROBE_SEED)
    return [generator.integers(0, vocabulary, length, dtype=np.int32) for _ in range(rows)]
