"""Keys and values of every row, in one tensor that is never moved or grown."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.shape import ModelShape


class KeyValueCache:
    """Static cache of `slots` rows.

    Each row has one position more than the context: idle rows inside a batch write there, and
    nobody reads it. Everything starts as zeros: a position that is masked out still enters sums
    with weight 0, so it must be finite.

    Attributes:
        values: [layers, slots, context + 1, 2, kv_heads, head_dim]; keys at 0, values at 1.
        flat: one [slots * (context + 1), 2 * kv_heads * head_dim] view a layer, for writing.
        num_positions: context + 1.
        device: where it lies.
    """

    def __init__(
        self,
        shape: ModelShape,
        slots: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_positions, self.device = context_tokens + 1, device
        sizes = (
            shape.num_layers,
            slots,
            self.num_positions,
            2,
            shape.num_kv_heads,
            shape.head_dim,
        )
        self.values = _zeros(sizes, dtype, device)
        width = 2 * shape.num_kv_heads * shape.head_dim
        self.flat = self.values.view(shape.num_layers, -1, width).unbind(0)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy positions [0, length) of one row to another."""
        self.values[:, target, :length] = self.values[:, source, :length]

    def clear(self, row: int) -> None:
        """Zero a row that may hold NaN."""
        self.values[:, row] = 0


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    # The system hands out zeroed pages on first touch: a cache far larger than what is in use
    # costs no memory and no start-up time. torch.zeros would write every page.
    bits = np.zeros(sizes, dtype=np.uint16 if dtype == torch.bfloat16 else np.float32)
    return torch.from_numpy(bits).view(dtype)
