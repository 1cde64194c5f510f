"""One step's work, laid out: which tokens go through the model, in which groups they attend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.attention import (
    DecodeGroup,
    PrefillGroup,
    causal_bias,
)
from milepost.actors.engine.embedded.cache import KeyValueCache
from milepost.actors.engine.embedded.decoder import Batch
from milepost.actors.engine.embedded.scheduler import Scheduler
from milepost.actors.engine.embedded.sequences import Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS_MIN: Final = 4
"""Matrix products of fewer rows take another path and round differently: a reply would depend on
how many others are sampled beside it."""
_LENGTH_STEP: Final = 16
"""Keys in use are rounded up to a multiple of this."""
_LENGTH_STEP_GRAPHED: Final = 256
"""The same where steps are recorded: few shapes serve all steps..."""
_ROWS_STEP_GRAPHED: Final = 16
"""... and rows are taken by so many."""
_BIAS_MAX: Final = 4 << 20
"""Most elements of one row's bias: longer chunks attend block by block."""
_PADDING_MAX: Final = 16384
"""Query-key pairs a group may waste on padding before a group of its own is cheaper."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, end) of a sequence in prefill, as tokens [offset, ...) of the pass."""

    sequence: Sequence
    start: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward pass.

    Attributes:
        columns: int64 [4, N]: ids, positions and cache indices of its tokens, and their rows (of
            the decode group only).
        window: rows of the decode group; they are tokens [0, window).
        first_row: the first of them, when they lie side by side, else -1.
        length: keys that the decode group reads.
        decoding: int64, rows that get one token more.
        decoding_tokens: int64, the tokens of the pass that these rows are.
        chunks: prefill.
    """

    columns: NDArray[np.int64]
    window: int
    first_row: int
    length: int
    decoding: NDArray[np.int64]
    decoding_tokens: NDArray[np.int64]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries [start, end) of one row, as tokens [offset, ...) of the pass."""

    row: int
    start: int
    end: int
    offset: int


class Planner:
    """Lays out steps.

    Args:
        scheduler: who computes.
        cache: keys and values.
        prefill_tokens_max: most prompt tokens of one step.
        graphed: steps that only decode are recorded: keep to few shapes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KeyValueCache,
        prefill_tokens_max: int,
        *,
        graphed: bool = False,
    ) -> None:
        self._scheduler, self._cache = scheduler, cache
        self._prefill_tokens_max = prefill_tokens_max
        self._rows_step = _ROWS_STEP_GRAPHED if graphed else 1
        self._length_step = _LENGTH_STEP_GRAPHED if graphed else _LENGTH_STEP
        self._places = torch.arange(cache.num_positions, device=cache.device)
        self._hidden, self._seen = torch.tensor(
            [float("-inf"), 0.0], dtype=cache.values.dtype, device=cache.device
        ).unbind(0)
        self._shape = (0, 0, 0)
        self._sources: tuple[Tensor, ...] = ()

    def plan(self) -> Plan | None:
        """The next pass: every decoding row, and prefill; None when nobody computes."""
        scheduler = self._scheduler
        decoding = scheduler.decoding
        if decoding.size == 0 and not scheduler.prefilling:
            return None
        first, window = self._window(decoding)
        chunks = self._cut_chunks(window)
        num_tokens = window + sum(chunk.end - chunk.start for chunk in chunks)
        columns = np.empty((4, num_tokens), np.int64)
        if first >= 0:
            tokens = decoding - first
            self._fill_window(columns[:, :window], first)
        else:
            tokens = np.arange(decoding.size)
            self._fill_rows(columns[:, :window], decoding)
        for chunk in chunks:
            _fill_chunk(columns, chunk, self._cache.num_positions)
        longest = int(scheduler.rows.kv_length[scheduler.where].max()) + 1 if decoding.size else 1
        length = min(_round_up(longest, self._length_step), self._cache.num_positions)
        return Plan(columns, window, first, length, decoding, tokens, chunks)

    def batch(self, plan: Plan) -> Batch:
        """The pass as the decoder takes it, on its device."""
        return self.lay_out(torch.from_numpy(plan.columns).to(self._cache.device), plan)

    def lay_out(self, columns: Tensor, plan: Plan) -> Batch:
        """As `batch`, with the columns given as int64 [4, N] on the device."""
        ids, positions, write_index, rows = columns.unbind(0)
        decode = None
        if plan.window:
            window = plan.window
            decode = self._decode_group(positions[:window], rows[:window], plan)
        prefill: tuple[PrefillGroup, ...] = ()
        if plan.chunks:
            groups = _group_pieces(_cut_pieces(plan.chunks))
            prefill = tuple(_group(group, self._cache) for group in groups)
        return Batch(ids, positions, write_index, decode, prefill)

    def _window(self, decoding: NDArray[np.int64]) -> tuple[int, int]:
        """First row and number of rows of the decode group; first row -1: they are scattered.

        Rows side by side are read where they lie. Idle rows between them compute nothing useful;
        where they would be the greater part, the decoding rows are copied out instead.
        """
        slots, step = self._scheduler.rows.slots, self._rows_step
        first, window = 0, 0
        if decoding.size:
            first = int(decoding[0]) // step * step
            window = _round_up(int(decoding[-1]) + 1 - first, step)
            if window > max(2 * decoding.size, step, ROWS_MIN):
                return -1, max(_round_up(decoding.size, step), ROWS_MIN)
        if 0 < window < ROWS_MIN or self._num_left() < ROWS_MIN:
            window = max(window, ROWS_MIN)
        window = min(window, slots)
        return min(first, slots - window), window

    def _num_left(self) -> int:
        """Tokens that prefill would add to the pass, as far as it matters."""
        left = sum(len(seq.tokens) - seq.computed for seq in self._scheduler.prefilling)
        return min(left, self._prefill_tokens_max)

    def _cut_chunks(self, offset: int) -> tuple[Chunk, ...]:
        chunks = []
        budget = self._prefill_tokens_max
        for sequence in self._scheduler.prefilling:
            start = sequence.computed
            end = min(sequence.tokens.shape[0], start + budget)
            chunks.append(Chunk(sequence, start, end, offset))
            offset += end - start
            budget -= end - start
            if budget == 0:
                break
        return tuple(chunks)

    def _fill_window(self, columns: NDArray[np.int64], first: int) -> None:
        """The rows from `first` on; idle ones compute at the position that nobody reads."""
        rows, where = self._scheduler.rows, slice(first, first + columns.shape[1])
        unread = self._cache.num_positions - 1
        columns[0] = rows.current[where]
        columns[1] = np.where(rows.decoding[where], rows.kv_length[where], unread)
        columns[3] = rows.numbers[where]
        np.multiply(columns[3], self._cache.num_positions, out=columns[2])
        columns[2] += columns[1]

    def _fill_rows(self, columns: NDArray[np.int64], decoding: NDArray[np.int64]) -> None:
        """These rows; places left over compute where nobody reads."""
        rows, count = self._scheduler.rows, decoding.size
        columns[3, :count] = decoding
        columns[3, count:] = decoding[0]
        columns[0] = rows.current[columns[3]]
        columns[1, :count] = rows.kv_length[decoding]
        columns[1, count:] = self._cache.num_positions - 1
        np.multiply(columns[3], self._cache.num_positions, out=columns[2])
        columns[2] += columns[1]

    def _decode_group(self, positions: Tensor, rows: Tensor, plan: Plan) -> DecodeGroup:
        shape = (plan.first_row, plan.window, plan.length)
        if shape != self._shape:
            in_use = self._cache.values[:, :, : plan.length]
            if plan.first_row >= 0:
                last = plan.first_row + plan.window
                in_use = in_use[:, plan.first_row : last].transpose(2, 4)
            self._shape, self._sources = shape, in_use.unbind(0)
        is_later = self._places[: plan.length] > positions.view(-1, 1, 1, 1)
        bias = torch.where(is_later, self._hidden, self._seen)
        return DecodeGroup(self._sources, rows if plan.first_row < 0 else None, bias)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _fill_chunk(columns: NDArray[np.int64], chunk: Chunk, num_positions: int) -> None:
    sequence, start, end = chunk.sequence, chunk.start, chunk.end
    part = columns[:, chunk.offset : chunk.offset + end - start]
    part[0] = sequence.tokens[start:end]
    part[1] = np.arange(start, end)
    part[2] = part[1]
    if start < sequence.cached:
        # A scored row reads its cached prefix and must not overwrite it.
        part[2, : sequence.cached - start] = num_positions - 1
    part[2] += sequence.row * num_positions


def _cut_pieces(chunks: tuple[Chunk, ...]) -> list[_Piece]:
    """Queries whose bias stays small, shortest first; those that start at 0 before others."""
    pieces = []
    for chunk in chunks:
        start, end = chunk.start, chunk.end
        block = end - start if start == 0 else max(_BIAS_MAX // end, ROWS_MIN)
        for first in range(start, end, block):
            last = min(first + block, end)
            offset = chunk.offset + first - start
            pieces.append(_Piece(chunk.sequence.row, first, last, offset))
    return sorted(pieces, key=lambda piece: (piece.start > 0, piece.end - piece.start))


def _group_pieces(pieces: list[_Piece]) -> list[list[_Piece]]:
    groups: list[list[_Piece]] = []
    real = longest = widest = 0
    for piece in pieces:
        count = piece.end - piece.start
        if groups:
            group = groups[-1]
            longest, widest = max(longest, piece.end), max(widest, count)
            padded = (len(group) + 1) * longest * widest
            same_kind = (group[0].start > 0) == (piece.start > 0)
            wanted = real + count * piece.end
            if same_kind and padded <= min(2 * wanted + _PADDING_MAX, 4 * _BIAS_MAX):
                group.append(piece)
                real = wanted
                continue
        groups.append([piece])
        real, longest, widest = count * piece.end, piece.end, count
    return groups


def _group(pieces: list[_Piece], cache: KeyValueCache) -> PrefillGroup:
    device = cache.device
    num_rows = len(pieces)
    counts = np.array([piece.end - piece.start for piece in pieces])
    starts = np.array([piece.start for piece in pieces])
    offsets = np.array([piece.offset for piece in pieces])
    widest, length = int(counts.max()), int((starts + counts).max())
    steps = np.arange(widest)
    real = steps < counts[:, None]
    gather = offsets[:, None] + np.where(real, steps, 0)
    scatter = np.flatnonzero(real)
    indices = [np.array([piece.row for piece in pieces]), gather.ravel(), scatter]
    rows, gathered, scattered = (torch.from_numpy(x).to(device) for x in indices)
    bias = None
    if starts.any():
        positions = np.where(real, starts[:, None] + steps, 0).reshape(num_rows, widest)
        bias = causal_bias(torch.from_numpy(positions).to(device), length, cache.values.dtype)
    return PrefillGroup(rows, gathered, scattered, gathered[scattered], length, bias)
