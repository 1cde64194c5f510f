"""Which tensors travel together: units that are never split, experts behind everything else.

A unit is a tensor, or an atomic group: a weight with its scales and zero points, or parameters that
engines fuse into one (query, key and value; gate and up). An engine that switched between two
halves of one would serve a matrix that no policy ever had, or would have to keep the first half
until the second comes. Pure: names and sizes in, buckets of names out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

EXPERT: Final = re.compile(r"\.experts\.")
"""A routed expert's parameter; shared experts are everybody's and are none."""
COMPANION: Final = re.compile(
    r"[._](?:weight_)?(?:scale|scales|scale_inv|zero_point|zero_points|zeros|qzeros|g_idx)$"
)
"""What quantization puts beside a weight."""
WEIGHT: Final = re.compile(r"\.(?:weight|qweight|weight_packed)$")
FUSED: Final = (
    (re.compile(r"\.(?:q_proj|k_proj|v_proj)(?=\.|$)"), ".qkv"),
    (re.compile(r"\.(?:gate_proj|up_proj)(?=\.|$)"), ".gate_up"),
    (re.compile(r"\.(?:q_a_proj|kv_a_proj_with_mqa)(?=\.|$)"), ".q_kv_a"),
)
"""Modules that engines keep as one matrix, by what stands for all of them."""


def unit_of(name: str) -> str:
    """Name of the unit that a tensor belongs to: equal for all that must not be split."""
    stem = WEIGHT.sub("", COMPANION.sub("", name))
    stem = stem.removesuffix(".bias")
    for pattern, whole in FUSED:
        stem = pattern.sub(whole, stem)
    return stem


def buckets_of(
    sizes: Mapping[str, int], *, bytes_max: int, expert_degree: int = 1
) -> list[list[str]]:
    """Names of each bucket, in the order in which they travel.

    A unit stands where its first tensor stands. A unit that is larger than a bucket has one of its
    own. Experts come behind all others; where each of `expert_degree` ranks has other ones and all
    of them are gathered at once, a bucket of them holds as many bytes as fewer tensors.

    Args:
        sizes: bytes of each tensor by name, in order.
        bytes_max: of a bucket.
        expert_degree: ranks that the experts are spread over when they are gathered.
    """
    units: dict[str, list[str]] = {}
    for name in sizes:
        units.setdefault(unit_of(name), []).append(name)
    common = [unit for unit in units.values() if not EXPERT.search(unit[0])]
    experts = [unit for unit in units.values() if EXPERT.search(unit[0])]
    return [
        *_filled(common, sizes, bytes_max, 1),
        *_filled(experts, sizes, bytes_max, expert_degree),
    ]


def _filled(
    units: Iterable[list[str]], sizes: Mapping[str, int], bytes_max: int, factor: int
) -> list[list[str]]:
    filled: list[list[str]] = []
    room = 0
    for unit in units:
        size = factor * sum(sizes[name] for name in unit)
        if not filled or size > room:
            filled.append([])
            room = bytes_max
        filled[-1] += unit
        room -= size
    return filled
