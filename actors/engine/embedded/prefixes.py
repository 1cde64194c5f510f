"""Finding the longest prefix of a new row that some row of the cache already holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from milepost.actors.engine.embedded.rows import Rows
from milepost.actors.engine.embedded.sequences import Sequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GLANCE: Final = 32
"""Tokens compared first; rows that differ within them are not read further."""
WORTH_WAITING: Final = 16
"""Tokens that a prefill in progress must save before a sequence waits for it."""
_WORTH_COPYING: Final = 8
"""Tokens below which another row's prefix is computed anew: rows that start at 0 are faster."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a new sequence can take over.

    Attributes:
        row: which row holds it, -1 for none.
        length: positions [0, length) are the same tokens and have keys and values.
        coming_from: a sequence in prefill that will hold at least `WORTH_WAITING` more.
    """

    row: int = -1
    length: int = 0
    coming_from: Sequence | None = None


def find_prefix(rows: Rows, sequence: Sequence, serial: int) -> Prefix:
    """The longest reusable prefix of `sequence`, at least one token short of all of it.

    Very short ones are not worth a copy. Only rows whose keys and values were all computed by the
    weights `serial` are looked at.
    """
    if not sequence.uses_cache:
        return Prefix()
    # The last token goes through the model in any case: its hidden state gives the next one.
    tokens = sequence.tokens[:-1]
    own = rows.of_session.get(sequence.session_id, -1)
    if own >= 0 and not rows.busy[own] and rows.serial[own] == serial:
        held = min(int(rows.kv_length[own]), len(tokens))
        if (rows.tokens[own, :held] == tokens[:held]).all():
            # A session that goes on: all of its row is reused, no other row can be better.
            return Prefix(own, held)
    usable = (rows.serial == serial) & ((rows.kv_length > 0) | rows.busy)
    candidates = np.flatnonzero(usable)
    if candidates.size == 0:
        return Prefix()
    same_tokens = common_lengths(rows.tokens[candidates, : tokens.shape[0]], tokens)
    ready = np.minimum(same_tokens, rows.kv_length[candidates])
    best = int(ready.argmax())
    length = int(ready[best]) if ready[best] >= _WORTH_COPYING else 0
    # Rows in prefill: what they will hold, not what they hold now.
    prefilling = rows.busy[candidates] & ~rows.decoding[candidates]
    later = np.where(prefilling, np.minimum(same_tokens, rows.known[candidates]), 0)
    latest = int(later.argmax())
    coming_from = None
    if later[latest] >= length + WORTH_WAITING:
        coming_from = rows.owner[candidates[latest]]
    return Prefix(int(candidates[best]) if length else -1, length, coming_from)


def common_lengths(rows: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many leading tokens each row shares with `tokens`.

    Args:
        rows: int32 [R, at least T].
        tokens: int32 [T].

    Returns:
        int64 [R], each at most T.
    """
    length = tokens.shape[0]
    if length <= _GLANCE:
        return _first_difference(rows[:, :length], tokens)
    common = _first_difference(rows[:, :_GLANCE], tokens[:_GLANCE])
    on = np.flatnonzero(common == _GLANCE)
    if on.size:
        common[on] += _first_difference(rows[on, _GLANCE:length], tokens[_GLANCE:])
    return common


def _first_difference(rows: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    count, length = rows.shape
    # A column that always differs: argmax then finds the end of rows that are the same throughout.
    differs = np.ones((count, length + 1), np.bool_)
    np.not_equal(rows, tokens, out=differs[:, :length])
    first: NDArray[np.int64] = differs.argmax(axis=1)
    return first
