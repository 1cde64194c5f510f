"""A version's weights as the engines load them: whole tensors under Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Final, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from milepost.actors.arrays import to_bulk
from milepost.actors.trainer.fsdp.blueprint import Allocate, Blueprint, turned_back
from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.model import hugging_face_name
from milepost.actors.trainer.fsdp.shard import ShardedPolicy, whole
from milepost.messages.bulk import Bulk
from milepost.messages.bus.segments import ALIGNMENT, round_up
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


def export_version(
    policy: ShardedPolicy,
    group: RankGroup,
    blueprint: Blueprint,
    *,
    version: int,
    allocate: Allocate,
) -> Weights | None:
    """Write the parameters as they are now into buckets, each once and at its place.

    Collective.

    Args:
        policy: the one of the blueprint.
        group: the ranks.
        blueprint: which tensors, in which buckets.
        version: its number.
        allocate: gives the memory of each bucket.

    Returns:
        On rank 0 the version, elsewhere nothing.
    """
    rooms = _rooms(blueprint, allocate) if group.leads else {}
    left: dict[str, Tensor] = {}
    missing = set(rooms)
    with torch.no_grad():
        for name, full in gathered(policy):
            if not group.leads:
                continue
            if name in blueprint.kept:
                rooms[blueprint.kept[name]].copy_(full)
                missing.discard(blueprint.kept[name])
            else:
                left[name] = full.to("cpu", blueprint.dtype, copy=True)
        if not group.leads:
            return None
        for name, tensor in turned_back(policy, left).items():
            rooms[name].copy_(tensor)
            missing.discard(name)
    # Its place has the bytes of an older version, and the digest would agree to them.
    assert not missing, f"version {version} lacks {sorted(missing)[:3]}"
    bulks = {name: tensor_bulk(rooms[name]) for name in sorted(rooms)}
    buckets = tuple(
        BucketReady(
            version=version,
            index=index,
            names=names,
            tensors=tuple(bulks[name] for name in names),
        )
        for index, names in enumerate(blueprint.buckets)
    )
    specs = tuple(
        TensorSpec(name=name, dtype=bulk.dtype, shape=bulk.shape) for name, bulk in bulks.items()
    )
    each = tuple(xxhash.xxh3_128_hexdigest(bulk.data) for bulk in bulks.values())
    return Weights(specs, buckets, digest(bulks.items()), each)


def _rooms(blueprint: Blueprint, allocate: Allocate) -> dict[str, Tensor]:
    """A tensor over the place of each one of a version; those of a bucket share one memory."""
    rooms: dict[str, Tensor] = {}
    itemsize = blueprint.dtype.itemsize
    for names in blueprint.buckets:
        offsets, size = [], 0
        for name in names:
            offsets.append(size)
            size += round_up(prod(blueprint.shapes[name]) * itemsize, ALIGNMENT)
        memory = torch.frombuffer(allocate(size), dtype=torch.uint8)
        for name, offset in zip(names, offsets, strict=True):
            shape = blueprint.shapes[name]
            part = memory[offset : offset + prod(shape) * itemsize]
            rooms[name] = part.view(blueprint.dtype).view(shape)
    return rooms


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


def probe_rows(vocabulary: int, *, rows: int = 1, length: int = 32) -> list[NDArray[np.int32]]:
    """Fixed token rows for the canary of every version: the same in every process and run.

    Args:
        vocabulary: ids are drawn from [0, vocabulary).
        rows: how many.
        length: tokens of each.
    """
    generator = np.random.default_rng(PROBE_SEED)
    return [generator.integers(0, vocabulary, length, dtype=np.int32) for _ in range(rows)]
