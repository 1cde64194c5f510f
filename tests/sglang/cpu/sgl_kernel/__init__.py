"""Stands where SGLang's CUDA kernels would: every name imports, and raises when it is called.

One kernel has a real implementation, the hash behind seeded sampling: MurmurHash3 (32 bits, public
domain, A. Appleby) over the four words seed-low, seed-high, position, column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    return absent


def _rotated(words: Tensor, bits: int) -> Tensor:
    return ((words << bits) | (words >> (32 - bits))) & _WORD


def _murmur_hash(seeds: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    """uint32 [rows, columns] from seeds [rows], positions [rows], columns [columns]."""
    seed = seeds.view(torch.int64).unsqueeze(1)
    blocks = (
        seed & _WORD,
        (seed >> 32) & _WORD,
        positions.to(torch.int64).unsqueeze(1) & _WORD,
        columns.to(torch.int64).unsqueeze(0) & _WORD,
    )
    state = torch.zeros_like(seed)
    for block in blocks:
        mixed = (_rotated((block * 0xCC9E2D51) & _WORD, 15) * 0x1B873593) & _WORD
        state = (_rotated(state ^ mixed, 13) * 5 + 0xE6546B64) & _WORD
    state = state ^ (4 * len(blocks))
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _WORD
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _WORD
    return (state ^ (state >> 16)).to(torch.uint32)


def _shape_only(seeds: Tensor, _positions: Tensor, columns: Tensor) -> Tensor:
    return torch.empty((seeds.shape[0], columns.shape[0]), dtype=torch.uint32, device="meta")


_make: Any = torch.library.Library
_library: Any = _make("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", _murmur_hash, "CPU")
_library.impl("murmur_hash32_cpu", _shape_only, "Meta")
