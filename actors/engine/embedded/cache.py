"""Keys and values of every row, in one tensor that is never moved or grown; routes beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.shape import ModelShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class KeyValueCache:
    """Static cache of `slots` rows.

    Each row has one position more than the context: idle rows inside a batch write there, and
    nobody reads it. Everything starts as zeros: a position that is masked out still enters sums
    with weight 0, so it must be finite.

    Routes are kept like keys and values, at the same place and for as long: whoever takes a prefix
    over has its routes, too, and they are those of the pass that computed it.

    Args:
        shape: of the model.
        slots: rows.
        context_tokens: most tokens of one row.
        dtype: of keys and values.
        device: where they lie.
        keeps_routes: the model is a mixture of experts, and somebody will ask for its routes.

    Attributes:
        values: [layers, slots, context + 1, 2, kv_heads, head_dim]; keys at 0, values at 1.
        flat: one [slots * (context + 1), 2 * kv_heads * head_dim] view a layer, for writing.
        num_positions: context + 1.
        device: where it lies.
        routes: uint8 or int16 [slots, context + 1, mixture layers, experts per token] on the CPU;
            None when they are not kept.
    """

    def __init__(
        self,
        shape: ModelShape,
        slots: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keeps_routes: bool = False,
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
        self.routes: NDArray[np.uint8 | np.int16] | None = None
        if keeps_routes:
            assert shape.routes is not None, "routes of a model without experts"
            sides = (shape.routes.num_layers, shape.routes.experts_per_token)
            self.routes = np.zeros((slots, self.num_positions, *sides), shape.routes.dtype)
            self._flat_routes = self.routes.reshape(-1, *sides)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy positions [0, length) of one row to another."""
        self.values[:, target, :length] = self.values[:, source, :length]
        if self.routes is not None:
            self.routes[target, :length] = self.routes[source, :length]

    def write_routes(self, places: NDArray[np.int64], chosen: Sequence[Tensor]) -> None:
        """Note the experts of a pass.

        Args:
            places: int64 [N], of each token in the flattened cache.
            chosen: int64 [N, experts per token] of each mixture layer.
        """
        self._flat_routes[places] = torch.stack(tuple(chosen), 1).cpu().numpy()

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
