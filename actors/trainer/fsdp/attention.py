"""Attention over packed rows: each row sees itself and nothing of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

NAME = "milepost_packed"
"""Under which transformers' AttentionInterface knows `packed_attention`."""

PADDING_MAX = 0.25
"""Largest share of a padded block's rows that may be padding, unless the block is one row."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring rows of similar length that go through one padded attention call."""

    rows: int
    length: int
    """Of the longest row; all others are padded at their end."""
    num_tokens: int
    gather: Tensor | None
    """int64 [rows * length], for each padded token one of the block's own; None: no padding."""
    scatter: Tensor | None
    """int64 [num_tokens], for each of the block's own tokens its padded place."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each row lies in a packed sequence of T tokens. Made once, used by every layer."""

    cumulative: Tensor
    """int32 [rows + 1], on the device"""
    length_max: int
    blocks: tuple[Block, ...]


def make_layout(lengths: Sequence[int], device: torch.device) -> Layout:
    """Plan the attention of rows that lie one after the other.

    Right padding needs no mask under causal attention: a real token never looks to its right. So
    rows in descending order of length are cut into blocks with little padding, each one call.

    Args:
        lengths: of the rows, in order; descending order pads least.
        device: where the model computes.
    """
    return Layout(
        cumulative=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)).to(device),
        length_max=max(lengths),
        blocks=tuple(_make_block(part, device) for part in _cut_rows(lengths)),
    )


def _make_block(lengths: Sequence[int], device: torch.device) -> Block:
    longest, num_tokens = max(lengths), sum(lengths)
    rows = len(lengths)
    if num_tokens == rows * longest:
        return Block(rows, longest, num_tokens, None, None)
    columns, own = np.arange(longest), np.array(lengths)[:, None]
    starts = np.cumsum(own)[:, None] - own
    # Padding repeats the row's last token: a real place, whose gradient stays zero.
    gather = torch.from_numpy((starts + np.minimum(columns, own - 1)).ravel()).to(device)
    scatter = torch.from_numpy(np.flatnonzero(columns < own)).to(device)
    return Block(rows, longest, num_tokens, gather, scatter)


def _cut_rows(lengths: Sequence[int]) -> list[Sequence[int]]:
    """Lengths of the rows of each block."""
    parts: list[Sequence[int]] = []
    first = 0
    while first < len(lengths):
        longest, total, end = lengths[first], lengths[first], first + 1
        while end < len(lengths):
            top = max(longest, lengths[end])
            if top * (end + 1 - first) * (1 - PADDING_MAX) > total + lengths[end]:
                break
            longest, total, end = top, total + lengths[end], end + 1
        parts.append(lengths[first:end])
        first = end
    return parts


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    layout: Layout | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Causal attention within each row of a packed sequence; registered with transformers.

    Args:
        module: the attention layer; unused, part of the interface.
        query: [1, Hq, T, D].
        key: [1, Hkv, T, D], Hkv divides Hq.
        value: [1, Hkv, T, D].
        attention_mask: must be None, rows are told apart by `layout`.
        scaling: of the scores; by default D^-0.5.
        dropout: on the attention weights.
        layout: handed to the model's forward as a keyword.

    Returns:
        [1, T, Hq, D], and no weights.

    Raises:
        ValueError: without a layout, or with a mask.
    """
    del module
    if layout is None or attention_mask is not None:
        raise ValueError(f"{NAME} needs a layout and no mask: call the model with layout=...")
    heads = [each[0].transpose(0, 1) for each in (query, key, value)]
    if dropout == 0 and uses_varlen(query):
        return _varlen(*heads, layout=layout, scaling=scaling)[None], None
    return padded_attention(*heads, layout=layout, scaling=scaling, dropout=dropout)[None], None


def padded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layout: Layout,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """[T, H, D] in, [T, Hq, D] out, one call of SDPA for each block."""
    sizes = [block.num_tokens for block in layout.blocks]
    grouped = query.shape[1] != key.shape[1]
    outputs: list[Tensor] = []
    for block, *heads in zip(
        layout.blocks, *(_split(each, sizes) for each in (query, key, value)), strict=True
    ):
        q, k, v = (
            _pad(each, block).view(block.rows, block.length, *each.shape[1:]).transpose(1, 2)
            for each in heads
        )
        output = scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        outputs.append(_unpad(output.transpose(1, 2).flatten(0, 1), block))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _split(tokens: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return torch.split(tokens, sizes) if len(sizes) > 1 else (tokens,)


def _pad(tokens: Tensor, block: Block) -> Tensor:
    """[num_tokens, H, D] in, [rows * length, H, D] out."""
    if block.gather is None:
        return tokens
    padded = _Pad.apply(tokens, block.gather, block.scatter)  # type: ignore[no-untyped-call]
    return cast("Tensor", padded)


def _unpad(padded: Tensor, block: Block) -> Tensor:
    """The reverse."""
    return padded if block.scatter is None else padded.index_select(0, block.scatter)


class _Pad(Function):
    """What stands in the padding reaches no loss, so a token's gradient is that of its own place.

    Autograd does not know: it would add up the gradients of all places that show the token.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, gather: Tensor, scatter: Tensor) -> Tensor:
        ctx.save_for_backward(scatter)
        return tokens.index_select(0, gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (scatter,) = ctx.saved_tensors
        return gradient.index_select(0, scatter), None, None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, *, layout: Layout, scaling: float | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0)}
    if "enable_gqa" in varlen_parameters():
        options["enable_gqa"] = True
    elif query.shape[1] != key.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(times, dim=1) for each in (key, value))
    bounds, longest = layout.cumulative, layout.length_max
    output = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        bounds,
        bounds,
        longest,
        longest,
        **options,
    )
    assert isinstance(output, Tensor)
    return output


def uses_varlen(query: Tensor) -> bool:
    """Whether the flash kernel for rows of unequal length serves this tensor."""
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and half and fits and has_varlen()


def has_varlen() -> bool:
    """Whether this torch has `varlen_attn` with causal windows."""
    return {"window_size", "scale"} <= varlen_parameters()


@cache
def varlen_parameters() -> frozenset[str]:
    """Keywords of this torch's `varlen_attn`, which grew over its versions; empty without it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(signature(varlen_attn).parameters)
