"""Attention over packed rows: each row sees itself and nothing of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "milepost_packed"
"""Under which transformers' AttentionInterface knows `packed_attention`."""

PADDING_MAX = 0.25
"""Largest share of a padded block's rows that may be padding, unless the block is one row."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of similar length that go through one padded attention call."""

    start: int
    """First token of the block among the padded tokens."""
    rows: int
    length: int
    """Of the longest row; all others are padded at their end."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each row lies in a packed sequence of T tokens. Made once, used by every layer."""

    cumulative: Tensor
    """int32 [rows + 1], on the device"""
    length_max: int
    blocks: tuple[Block, ...]
    gather: Tensor | None
    """int64 [P], for each padded token the packed one; None when nothing needs padding."""
    scatter: Tensor | None
    """int64 [T], for each packed token its padded place."""


def make_layout(lengths: Sequence[int], device: torch.device) -> Layout:
    """Plan the attention of rows that lie one after the other.

    Right padding needs no mask under causal attention: a real token never looks to its right. So
    rows in descending order of length are cut into blocks with little padding, each one call.

    Args:
        lengths: of the rows, in order; descending order pads least.
        device: where the model computes.
    """
    starts = np.concatenate(([0], np.cumsum(lengths)))
    blocks = _cut_blocks(lengths)
    gather: list[Any] = []
    scatter: list[Any] = []
    row = 0
    for block in blocks:
        columns = np.arange(block.length)
        for number in range(block.rows):
            length = lengths[row]
            # Padding repeats the row's last token: a real place, whose gradient stays zero.
            gather.append(starts[row] + np.minimum(columns, length - 1))
            scatter.append(block.start + number * block.length + columns[:length])
            row += 1
    padded = sum(block.rows * block.length for block in blocks)
    tight = padded == int(starts[-1])
    return Layout(
        cumulative=torch.from_numpy(starts.astype(np.int32)).to(device),
        length_max=max(lengths),
        blocks=blocks,
        gather=None if tight else torch.from_numpy(np.concatenate(gather)).to(device),
        scatter=None if tight else torch.from_numpy(np.concatenate(scatter)).to(device),
    )


def _cut_blocks(lengths: Sequence[int]) -> tuple[Block, ...]:
    blocks: list[Block] = []
    start = first = 0
    while first < len(lengths):
        longest, total, end = lengths[first], lengths[first], first + 1
        while end < len(lengths):
            top = max(longest, lengths[end])
            if top * (end + 1 - first) * (1 - PADDING_MAX) > total + lengths[end]:
                break
            longest, total, end = top, total + lengths[end], end + 1
        blocks.append(Block(start, end - first, longest))
        start += longest * (end - first)
        first = end
    return tuple(blocks)


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
    return _padded(*heads, layout=layout, scaling=scaling, dropout=dropout)[None], None


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layout: Layout,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """[T, H, D] in, [T, Hq, D] out, one call of SDPA for each block."""
    if layout.gather is not None:
        query, key, value = (each.index_select(0, layout.gather) for each in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    outputs: list[Tensor] = []
    for block in layout.blocks:
        part = slice(block.start, block.start + block.rows * block.length)
        q, k, v = (
            each[part].reshape(block.rows, block.length, *each.shape[1:]).transpose(1, 2)
            for each in (query, key, value)
        )
        output = scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined if layout.scatter is None else joined.index_select(0, layout.scatter)


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
