"""The rows of the static cache: what each holds, whose it is, how it samples. All in NumPy.

Every property of a row is one element of an array, so that a step of the whole batch is a few
array operations. Idle rows keep their tokens, keys and values as prefixes for later requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.sampling import GREEDY, PLAIN, TRUNCATED, Sampled, SamplerRows
from milepost.actors.engine.embedded.sequences import Reply, Sequence, sampling_kinds
from milepost.actors.engine.embedded.uniforms import stream_key, uniforms
from milepost.messages.shared import SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOT_REUSABLE: Final = -1
"""Serial of rows that hold nothing, or keys and values of more than one version."""
FORGOTTEN: Final = 1
"""`last_used` of a prefix whose session is over."""
_NO_STOP: Final = -1
_OFF_TOP_P: Final = 2.0
"""Above any cumulative probability, whatever its rounding."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """M rows that sample together.

    Attributes:
        rows: int64 [M].
        where: the same rows for indexing: a slice where they lie side by side.
        starts: int64 [M], where each row begins in the flattened tokens.
        sampler: how they sample.
        keys: uint64 [M], of their random streams.
        stops: int64 [M, S] stop ids, -1 where there are fewer.
        ends: int64 [M], lengths at which the replies are cut.
    """

    rows: NDArray[np.int64]
    where: slice | NDArray[np.int64]
    starts: NDArray[np.int64]
    sampler: SamplerRows
    keys: NDArray[np.uint64]
    stops: NDArray[np.int64]
    ends: NDArray[np.int64]

    def is_stop(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where int64 [M] `ids` are stop ids of their rows."""
        if self.stops.shape[1] == 1:
            same: NDArray[np.bool_] = self.stops[:, 0] == ids
            return same
        hits: NDArray[np.bool_] = (self.stops == ids[:, None]).any(axis=1)
        return hits


class Rows:
    """State of `slots` rows.

    Args:
        slots: rows.
        context_tokens: most tokens of one row.
        vocab_size: size of the vocabulary.

    Attributes:
        numbers: int64 [slots], 0, 1, 2, ...
        positions: int64 [context], 0, 1, 2, ...
        tokens: int32 [slots, context + 1].
        logprobs: float32 [slots, context + 1], beside sampled tokens.
        known: int64 [slots], tokens of a row in prefill.
        kv_length: int64 [slots], positions [0, kv_length) have keys and values.
        serial: int64 [slots], of the weights that computed all of them, or `NOT_REUSABLE`.
        current: int64 [slots], last token of a decoding row; it has no keys and values yet.
        end: int64 [slots], length at which the reply is cut.
        busy: bool [slots], a sequence is in the row.
        decoding: bool [slots], one token a step is sampled.
        last_used: int64 [slots]; 0 holds nothing, 1 is forgotten, else a growing count.
        owner: the sequence in each row; None when idle.
        session: session whose prefix an idle row keeps, or whose request it runs.
        of_session: the row of each session's latest request.
    """

    def __init__(self, slots: int, context_tokens: int, vocab_size: int) -> None:
        self.slots, self.context_tokens, self.vocab_size = slots, context_tokens, vocab_size
        self.numbers, self.positions = np.arange(slots), np.arange(context_tokens)
        self.tokens = np.zeros((slots, context_tokens + 1), np.int32)
        self.logprobs = np.zeros((slots, context_tokens + 1), np.float32)
        self._flat_tokens, self._flat_logprobs = self.tokens.ravel(), self.logprobs.ravel()
        self.known = np.zeros(slots, np.int64)
        self.kv_length = np.zeros(slots, np.int64)
        self.serial = np.full(slots, NOT_REUSABLE, np.int64)
        self.current = np.zeros(slots, np.int64)
        self.end = np.zeros(slots, np.int64)
        self.busy = np.zeros(slots, np.bool_)
        self.decoding = np.zeros(slots, np.bool_)
        self.last_used = np.zeros(slots, np.int64)
        self.owner: list[Sequence | None] = [None] * slots
        self.session: list[str] = [""] * slots
        self.of_session: dict[str, int] = {}
        self._kinds = np.zeros(slots, np.uint8)
        self._temperature = np.ones(slots, np.float32)
        self._top_p = np.full(slots, _OFF_TOP_P)
        self._top_k = np.full(slots, vocab_size, np.int64)
        self._min_p = np.zeros(slots)
        self._key = np.zeros(slots, np.uint64)
        self._num_top = np.zeros(slots, np.int64)
        self._stops = np.full((slots, 1), _NO_STOP, np.int64)
        self._uses = 1

    # ---- occupancy -----------------------------------------------------------------------

    def occupy(self, row: int, sequence: Sequence, cached: int, serial: int) -> None:
        """Give an idle row to a sequence; positions [0, cached) keep their keys and values."""
        assert self.owner[row] is None, f"row {row} is in use"
        assert cached == 0 or self.serial[row] == serial, (
            f"row {row} holds keys of weights {self.serial[row]}, serving {serial}"
        )
        self._unname(row)
        length = sequence.tokens.shape[0]
        self.tokens[row, :length] = sequence.tokens
        self.known[row] = length
        self.kv_length[row] = cached
        self.serial[row] = serial
        self.owner[row] = sequence
        self.busy[row] = True
        self.session[row] = sequence.session_id
        if sequence.session_id:
            self.of_session[sequence.session_id] = row
        sequence.row, sequence.cached = row, cached
        if isinstance(sequence, Reply):
            self._set_reply(row, sequence)

    def release(self, row: int, *, keep: bool) -> None:
        """The sequence left. `keep` its keys and values as a prefix, if they are of one version."""
        sequence = self.owner[row]
        assert sequence is not None, f"row {row} is idle already"
        sequence.row = -1
        self.owner[row] = None
        self.busy[row] = False
        self.decoding[row] = False
        if keep and self.serial[row] != NOT_REUSABLE and self.kv_length[row] > 0:
            self._uses += 1
            self.last_used[row] = self._uses
        else:
            self.empty(row)

    def empty(self, row: int) -> None:
        """Forget what an idle row holds."""
        assert self.owner[row] is None, f"row {row} is in use"
        self._unname(row)
        self.kv_length[row] = 0
        self.serial[row] = NOT_REUSABLE
        self.last_used[row] = 0

    def forget(self, session_id: str) -> None:
        """This session's idle prefix goes before all others."""
        row = self.of_session.get(session_id)
        if row is not None and self.owner[row] is None:
            self.last_used[row] = FORGOTTEN

    def least_used(self, *, but: int = -1) -> int:
        """The idle row to give away first, -1 if there is none."""
        never = np.iinfo(np.int64).max
        order = np.where(self.busy, never, self.last_used)
        if but >= 0:
            order[but] = never
        row = int(order.argmin())
        if order[row] > FORGOTTEN:
            return row if order[row] != never else -1
        # Many are as good: one beside the rows that compute, which are read as one slice.
        alike, busy = np.flatnonzero(order == order[row]), np.flatnonzero(self.busy)
        middle = int(busy[0] + busy[-1]) // 2 if busy.size else 0
        return int(alike[np.abs(alike - middle).argmin()])

    # ---- sampling ------------------------------------------------------------------------

    def cohort(self, rows: NDArray[np.int64], device: torch.device) -> Cohort:
        """What stays the same while exactly these rows sample together."""
        starts = rows * (self.context_tokens + 1)
        keys, stops, ends = self._key[rows], self._stops[rows], self.end[rows]
        sampler = self._sampler(rows, device)
        return Cohort(rows, side_by_side(rows), starts, sampler, keys, stops, ends)

    def _sampler(self, rows: NDArray[np.int64], device: torch.device) -> SamplerRows:
        kinds = self._kinds[rows]
        any_kind, num_top = int(np.bitwise_or.reduce(kinds)), int(self._num_top[rows].max())
        if any_kind == 0 and num_top == 0:
            return PLAIN
        cut = np.flatnonzero(kinds & TRUNCATED)

        def column(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values).to(device)[:, None]

        return SamplerRows(
            kinds=any_kind,
            temperature=column(self._temperature[rows]),
            greedy=column((kinds & GREEDY) != 0),
            cut=torch.from_numpy(cut).to(device),
            top_k=column(self._top_k[rows[cut]]),
            top_p=column(self._top_p[rows[cut]]),
            min_p=column(self._min_p[rows[cut]]),
            num_top=num_top,
        )

    def uniforms(self, cohort: Cohort) -> NDArray[np.float64]:
        """Random numbers of the tokens that follow the keys and values of these rows."""
        return uniforms(cohort.keys, self.kv_length[cohort.where])

    def append(self, cohort: Cohort, sampled: Sampled) -> NDArray[np.bool_]:
        """Append one sampled token to each row; True where that ends the reply."""
        ids, positions = sampled.ids, self.kv_length[cohort.where]
        places = cohort.starts + positions
        self._flat_tokens[places] = ids
        self._flat_logprobs[places] = sampled.logprobs
        self.current[cohort.where] = ids
        is_full: NDArray[np.bool_] = positions + 1 >= cohort.ends
        is_nan: NDArray[np.bool_] = np.isnan(sampled.logprobs)
        over: NDArray[np.bool_] = is_full | is_nan | cohort.is_stop(ids)
        return over

    def _set_reply(self, row: int, reply: Reply) -> None:
        sampling = reply.order.sampling
        prompt_length = reply.prompt_length
        self.end[row] = min(prompt_length + sampling.tokens_max, self.context_tokens)
        self.logprobs[row, prompt_length : reply.tokens.shape[0]] = reply.logprobs
        self._kinds[row] = sampling_kinds(sampling)
        self._temperature[row] = sampling.temperature or 1.0
        self._top_p[row] = sampling.top_p if sampling.top_p < 1 else _OFF_TOP_P
        self._top_k[row] = sampling.top_k or self.vocab_size
        self._min_p[row] = sampling.min_p
        self._key[row] = stream_key(sampling.seed)
        self._num_top[row] = sampling.top_logprobs
        self._set_stops(row, sampling)

    def _set_stops(self, row: int, sampling: SamplingParams) -> None:
        stops = sampling.stop_token_ids
        if len(stops) > self._stops.shape[1]:
            wider = np.full((self.slots, len(stops)), _NO_STOP, np.int64)
            wider[:, : self._stops.shape[1]] = self._stops
            self._stops = wider
        self._stops[row] = _NO_STOP
        self._stops[row, : len(stops)] = stops

    def _unname(self, row: int) -> None:
        session_id = self.session[row]
        if session_id and self.of_session.get(session_id) == row:
            del self.of_session[session_id]
        self.session[row] = ""


def side_by_side(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """The slice that takes exactly these ascending rows, or the rows themselves."""
    if rows.size and int(rows[-1]) - int(rows[0]) + 1 == rows.size and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
