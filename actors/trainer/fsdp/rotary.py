"""Attention layers that rotate queries and keys in the order in which projections leave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from milepost.actors.trainer.fsdp.attention import Layout, padded_attention

# Shape suffixes: T packed tokens, H heads, D head size.

Hook: TypeAlias = Callable[[nn.Module, object, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]


class FusedAttention(nn.Module):
    """An attention layer of transformers whose rotation is one operation with a known inverse.

    Rotary embeddings (Su et al. 2021, arXiv:2104.09864) turn pairs of a head's features, here its
    first half with its second. Projections leave [T, H, D]; so do rotation and attention, and
    nothing is laid out anew in between, in either direction.

    Args:
        attention: the layer, whose projections (and norms of heads, where it has any) are used
            under the names they have.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj = attention.q_proj, attention.k_proj
        self.v_proj, self.o_proj = attention.v_proj, attention.o_proj
        self.q_norm = getattr(attention, "q_norm", nn.Identity())
        self.k_norm = getattr(attention, "k_norm", nn.Identity())
        self.head_size = int(attention.head_dim)
        self.num_heads = self.q_proj.out_features // self.head_size
        self.scaling = float(attention.scaling)
        self.dropout = float(attention.attention_dropout)
        self.train(attention.training)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        *,
        layout: Layout,
        **_: object,
    ) -> tuple[Tensor, None]:
        """[1, T, H D] in and out, and no weights.

        Args:
            hidden_states: of packed rows.
            position_embeddings: from `widened` tables.
            attention_mask: must be None, rows are told apart by `layout`.
            layout: of the rows.
        """
        assert attention_mask is None, "packed rows have a layout and no mask"
        cos, sin = position_embeddings
        query, key, value = (
            project(hidden_states)[0].unflatten(-1, (-1, self.head_size))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = padded_attention(
            rotate(self.q_norm(query), cos, sin),
            rotate(self.k_norm(key), cos, sin),
            value,
            layout=layout,
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
        )
        return self.o_proj(mixed.flatten(1)[None]), None


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`y = x cos + swapped(x) sin`, where the halves of each head have changed places.

    Args:
        states: x, [T, H, D].
        cos: constant, [T, at least H, D], its halves alike.
        sin: constant, [T, at least H, D], the first half the negative of the second.
    """
    heads = states.shape[1]
    rotated = _Rotate.apply(states, cos[:, :heads], sin[:, :heads])  # type: ignore[no-untyped-call]
    return cast("Tensor", rotated)


def widened(heads: int) -> Hook:
    """A hook for rotary embeddings: the same angles once for each head, signs in the sines.

    Tables as wide as queries let rotations run over memory without a break: with heads of 16 a
    rotation takes half the time. They are made once for all layers.

    Args:
        heads: of the queries.
    """

    def widen(_: nn.Module, __: object, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        cos, sin = (table[0] for table in tables)
        low, high = sin.chunk(2, dim=-1)
        signed = torch.cat((-low, high), dim=-1)
        wide = (table[:, None].expand(-1, heads, -1).contiguous() for table in (cos, signed))
        return next(wide), next(wide)

    return widen


class _Rotate(Function):
    """The gradient of a rotation is the inverse one: `dx = g cos - swapped(g) sin`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return (states * cos).addcmul_(_swapped(states), sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return (gradient * cos).addcmul_(_swapped(gradient), sin, value=-1), None, None


def _swapped(states: Tensor) -> Tensor:
    return states.roll(states.shape[-1] // 2, -1)
