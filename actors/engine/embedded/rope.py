"""Rotary position embeddings: one precomputed table, one rotation in place.

Su et al. 2021 (arXiv:2104.09864); `linear` is position interpolation (arXiv:2306.15595), `yarn`
arXiv:2309.00071, `llama3` the by-wavelength interpolation of Llama 3.1's model card.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from milepost.actors.engine.embedded.shape import RopeShape


def rope_table(rope: RopeShape, head_dim: int, num_positions: int, dtype: torch.dtype) -> Tensor:
    """Cosine and sine of every position.

    The sine's first half is negated, so that the rotation needs a swap of halves and no negation.

    Returns:
        `dtype` [num_positions, 2, 1, head_dim]: cosine at [:, 0], signed sine at [:, 1]. The axis
        of size 1 broadcasts over heads.
    """
    inverse, scale = inverse_frequencies(rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
    cosine, sine = angles.cos() * scale, angles.sin() * scale
    table = torch.stack(
        (torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)), dim=1
    )
    return table[:, :, None, :].to(dtype).contiguous()


def inverse_frequencies(rope: RopeShape, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position turns each pair of dimensions by, and the factor on cosine and sine.

    Returns:
        float32 [head_dim / 2] and a scale (not 1 only for yarn).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "yarn":
            scale = rope.attention_factor or 0.1 * math.log(max(rope.factor, 1.0)) + 1.0
            return _yarn(rope, plain, head_dim), scale
        case _:
            raise ValueError(f"rope type {rope.kind!r} has no frequencies")


def half_swaps(num_heads: int, device: torch.device) -> Tensor:
    """int64 [2 * num_heads] that exchanges the halves of each head: 1, 0, 3, 2, ..."""
    return torch.arange(2 * num_heads, device=device).view(-1, 2).flip(1).flatten()


def rotate_(heads: Tensor, cosine: Tensor, signed_sine: Tensor, swaps: Tensor, out: Tensor) -> None:
    """Write the rotated `heads` to `out`, which may be where they lie.

    Args:
        heads: [N, heads, head_dim].
        cosine: [N, 1, head_dim].
        signed_sine: [N, 1, head_dim], first half negated.
        swaps: `half_swaps` of these heads.
        out: as `heads`, any strides.
    """
    count, num_heads, head_dim = heads.shape
    halves = heads.reshape(count, 2 * num_heads, head_dim // 2)
    swapped = halves.index_select(1, swaps).view(count, num_heads, head_dim)
    torch.add(heads * cosine, swapped.mul_(signed_sine), out=out)


def _llama3(rope: RopeShape, plain: Tensor) -> Tensor:
    wavelengths = 2 * math.pi / plain
    longest = rope.original_context / rope.low_freq_factor
    shortest = rope.original_context / rope.high_freq_factor
    stretched = torch.where(wavelengths > longest, plain / rope.factor, plain)
    smooth = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    between = (1 - smooth) * stretched / rope.factor + smooth * stretched
    is_between = ~(wavelengths < shortest) & ~(wavelengths > longest)
    return torch.where(is_between, between, stretched)


def _yarn(rope: RopeShape, plain: Tensor, head_dim: int) -> Tensor:
    def dimension(rotations: float) -> float:
        turns = rope.original_context / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    # Rounded as the reference implementation rounds, so that the table is the same bits.
    kept = 1 - ramp
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    stretched = 1.0 / (rope.factor * rope.theta**exponents)
    return stretched * (1 - kept) + plain * kept
