"""One step's work, laid out: which tokens go through the model, in which groups they attend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.attention import DecodeGroup, PrefillGroup
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
_SPREAD_MAX: Final = 1.4
"""Rows of a window for each that decodes, beyond which decoding rows are copied out."""
_BIAS_MAX: Final = 16 << 20
"""Most elements of a group's bias."""
_CHUNK_MIN: Final = 64
"""Tokens that a chunk of a long row has all the same."""
_PADDING_MAX: Final = 16
"""Tokens a group may always waste on padding; beyond them, half of its real tokens."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [start, end) of a sequence in prefill, as tokens [offset, ...) of the pass."""

    sequence: Sequence
    start: int
    end: int
    offset: int

    @property
    def last_token(self) -> int:
        """Token of the pass whose state gives what follows the chunk."""
        return self.offset + self.end - self.start - 1


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Chunks that attend together, each padded to `width` tokens.

    Attributes:
        chunks: at least one; chunk i is tokens [offset + i * width, ...) of the pass.
        offset: first token of the pass.
        width: tokens of the longest chunk.
        length: keys in use, over all rows.
        is_fresh: every chunk starts at position 0.
    """

    chunks: tuple[Chunk, ...]
    offset: int
    width: int
    length: int
    is_fresh: bool

    @property
    def end(self) -> int:
        """First token of the pass after the group."""
        return self.offset + len(self.chunks) * self.width


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward pass.

    Attributes:
        columns: int64 [4, N]: id, position, cache index and row of each token.
        window: rows of the decode group; they are tokens [0, window).
        first_row: the first of them, when they lie side by side, else -1.
        length: keys that the decode group reads.
        decoding: int64, rows that get one token more.
        decoding_tokens: int64, the tokens of the pass that these rows are.
        groups: prefill.
    """

    columns: NDArray[np.int64]
    window: int
    first_row: int
    length: int
    decoding: NDArray[np.int64]
    decoding_tokens: NDArray[np.int64]
    groups: tuple[ChunkGroup, ...]


class Planner:
    """Lays out steps.

    Args:
        scheduler: who computes.
        cache: keys and values.
        prefill_tokens_max: most prompt tokens of one step, padding not counted.
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
        decoding, rows = scheduler.decoding, scheduler.rows
        if decoding.size == 0 and not scheduler.prefilling:
            return None
        first, window = self._window(decoding)
        groups = self._chunk_groups(window) if scheduler.prefilling else ()
        columns = np.empty((4, groups[-1].end if groups else window), np.int64)
        if first >= 0:
            tokens = decoding - first
            self._fill_window(columns[:, :window], first)
        else:
            tokens = np.arange(decoding.size)
            self._fill_rows(columns[:, :window], decoding)
        for group in groups:
            self._fill_group(columns, group)
        longest = int(rows.kv_length[scheduler.where].max()) + 1 if decoding.size else 1
        length = min(_round_up(longest, self._length_step), self._cache.num_positions)
        return Plan(columns, window, first, length, decoding, tokens, groups)

    def batch(self, plan: Plan) -> Batch:
        """The pass as the decoder takes it, on its device."""
        return self.lay_out(torch.from_numpy(plan.columns).to(self._cache.device), plan)

    def lay_out(self, columns: Tensor, plan: Plan) -> Batch:
        """As `batch`, with the columns given as int64 [4, N] on the device."""
        ids, positions, write_index, rows = columns.unbind(0)
        decode, window = None, plan.window
        if window:
            decode = self._decode_group(positions[:window], rows[:window], plan)
        prefill = tuple(self._prefill_group(positions, rows, group) for group in plan.groups)
        return Batch(ids, positions, write_index, decode, prefill)

    # ---- decoding rows -------------------------------------------------------------------

    def _window(self, decoding: NDArray[np.int64]) -> tuple[int, int]:
        """First row and number of rows of the decode group; first row -1: they are scattered.

        Rows side by side are read where they lie. Idle rows between them compute nothing useful;
        where there are too many, the decoding rows are copied out instead.
        """
        slots, step = self._scheduler.rows.slots, self._rows_step
        first, window = 0, 0
        if decoding.size:
            first = int(decoding[0]) // step * step
            window = _round_up(int(decoding[-1]) + 1 - first, step)
            if window > max(_SPREAD_MAX * decoding.size, step, ROWS_MIN):
                return -1, max(_round_up(decoding.size, step), ROWS_MIN)
        if 0 < window < ROWS_MIN or self._num_left() < ROWS_MIN:
            window = max(window, ROWS_MIN)
        window = min(window, slots)
        return min(first, slots - window), window

    def _num_left(self) -> int:
        """Tokens that prefill would add to the pass, as far as it matters."""
        left = sum(len(seq.tokens) - seq.computed for seq in self._scheduler.prefilling)
        return min(left, self._prefill_tokens_max)

    def _fill_window(self, columns: NDArray[np.int64], first: int) -> None:
        """The rows from `first` on; idle ones compute at the position that nobody reads."""
        rows, where = self._scheduler.rows, slice(first, first + columns.shape[1])
        unread = self._cache.num_positions - 1
        columns[0] = rows.current[where]
        columns[1] = np.where(rows.decoding[where], rows.kv_length[where], unread)
        columns[3] = rows.numbers[where]
        self._fill_places(columns)

    def _fill_rows(self, columns: NDArray[np.int64], decoding: NDArray[np.int64]) -> None:
        """These rows; places left over compute where nobody reads."""
        rows, count = self._scheduler.rows, decoding.size
        columns[3, :count] = decoding
        columns[3, count:] = decoding[0]
        columns[0] = rows.current[columns[3]]
        columns[1, :count] = rows.kv_length[decoding]
        columns[1, count:] = self._cache.num_positions - 1
        self._fill_places(columns)

    def _fill_places(self, columns: NDArray[np.int64]) -> None:
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
        bias = self._bias(positions.view(-1, 1, 1, 1), plan.length)
        return DecodeGroup(self._sources, rows if plan.first_row < 0 else None, bias)

    def _bias(self, positions: Tensor, length: int) -> Tensor:
        """0 for keys up to each query's position, -inf after it: [..., length]."""
        return torch.where(self._places[:length] > positions, self._hidden, self._seen)

    # ---- prefill -------------------------------------------------------------------------

    def _chunk_groups(self, offset: int) -> tuple[ChunkGroup, ...]:
        """What goes through the model of rows in prefill, alike chunks together."""
        cuts = sorted(self._cut(), key=lambda cut: (cut[1] > 0, cut[2] - cut[1]))
        groups: list[ChunkGroup] = []
        alike: list[tuple[Sequence, int, int]] = []
        real = length = 0
        for cut in cuts:
            start, end = cut[1:]
            real, length = real + end - start, max(length, end)
            padded = (len(alike) + 1) * (end - start)
            if alike and (
                (alike[0][1] > 0) != (start > 0)
                or padded * length > _BIAS_MAX
                or padded > 1.5 * real + _PADDING_MAX
            ):
                groups.append(_grouped(alike, offset))
                offset, alike, real, length = groups[-1].end, [], end - start, end
            alike.append(cut)
        return (*groups, _grouped(alike, offset))

    def _cut(self) -> list[tuple[Sequence, int, int]]:
        """Sequence, start and end of each chunk, in order of arrival."""
        cuts = []
        budget = self._prefill_tokens_max
        for sequence in self._scheduler.prefilling:
            start = sequence.computed
            end = min(len(sequence.tokens), start + budget)
            if start > 0:
                end = min(end, start + max(_BIAS_MAX // end, _CHUNK_MIN))
            cuts.append((sequence, start, end))
            budget -= end - start
            if budget <= 0:
                break
        return cuts

    def _fill_group(self, columns: NDArray[np.int64], group: ChunkGroup) -> None:
        part = columns[:, group.offset : group.end].reshape(4, -1, group.width)
        num_positions = self._cache.num_positions
        for index, chunk in enumerate(group.chunks):
            sequence, start, count = chunk.sequence, chunk.start, chunk.end - chunk.start
            ids, positions, places, rows = part[:, index]
            ids[:count] = sequence.tokens[start : chunk.end]
            positions[:count] = self._scheduler.rows.positions[start : chunk.end]
            rows[:] = sequence.row
            if count < group.width:
                ids[count:] = 0
                positions[count:] = num_positions - 1
            np.add(positions, sequence.row * num_positions, out=places)
            if start < sequence.cached:
                # A scored row reads its cached prefix and must not overwrite it.
                places[: sequence.cached - start] = (sequence.row + 1) * num_positions - 1

    def _prefill_group(self, positions: Tensor, rows: Tensor, group: ChunkGroup) -> PrefillGroup:
        tokens = slice(group.offset, group.end)
        bias = None
        if not group.is_fresh:
            own = positions[tokens].view(-1, 1, group.width, 1)
            bias = self._bias(own, group.length)
        return PrefillGroup(
            rows[tokens][:: group.width], group.offset, group.end, group.length, bias
        )


def _grouped(cuts: list[tuple[Sequence, int, int]], offset: int) -> ChunkGroup:
    width = max(end - start for _, start, end in cuts)
    chunks = tuple(
        Chunk(sequence, start, end, offset + index * width)
        for index, (sequence, start, end) in enumerate(cuts)
    )
    length = max(end for _, _, end in cuts)
    return ChunkGroup(chunks, offset, width, length, is_fresh=cuts[-1][1] == 0)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
