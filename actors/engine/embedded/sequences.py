"""A row of tokens on its way through the engine: a reply being sampled, or a row being scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from milepost.actors.engine.embedded.sampling import GREEDY, SCALED, TRUNCATED
from milepost.actors.engine.interface import GenerateOrder, ScoreOrder
from milepost.messages.shared import SamplingParams, VersionSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Sequence:
    """What replies and scored rows have in common.

    Attributes:
        session_id: whose prefix this is; empty for scored rows.
        tokens: int32, everything known when the sequence was last placed in a row.
        row: row of the cache, -1 while it waits.
        computed: positions [0, computed) went through the model since it was placed.
        cached: positions [0, cached) had keys and values in the row when it was placed.
        waits_for: a sequence whose prefill will give this one a longer prefix.
    """

    session_id: str
    tokens: NDArray[np.int32]
    row: int = -1
    computed: int = 0
    cached: int = 0
    waits_for: Sequence | None = None

    @property
    def uses_cache(self) -> bool:
        """Whether a prefix of another row may be taken, and this row be kept as one."""
        return True


@dataclass(slots=True, eq=False)
class Reply(Sequence):
    """A reply being sampled.

    Attributes:
        order: what was asked for.
        logprobs: float32 of the reply so far; current only while the sequence waits.
        spans: (first reply token, version, oldest version of the keys and values that its tokens
            attend to) of each change of version, in order.
        cached_tokens: prompt tokens that were cached when it was first placed, -1 before.
        top: (ids, log-probs) of the likeliest tokens at each reply token, when asked for.
        num_streamed: tokens that were posted as progress.
        routes: of the tokens from `order.routes_start` on that something was sampled after before
            the sequence was last retracted: prefilling it again must not change them.
    """

    order: GenerateOrder = field(kw_only=True)
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    cached_tokens: int = -1
    top: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = field(default_factory=list)
    num_streamed: int = 0
    routes: NDArray[np.uint8 | np.int16] | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens that were given."""
        return len(self.order.token_ids)

    def begin_version(self, num_generated: int, version: int, *, keeps_cache: bool) -> None:
        """Tokens from `num_generated` on are sampled under `version`.

        With `keeps_cache` they attend to keys and values of the versions before it.
        """
        kv_version = self.spans[-1][2] if keeps_cache and self.spans else version
        if self.spans and self.spans[-1][0] == num_generated:
            self.spans.pop()
        if not self.spans or self.spans[-1][1:] != (version, kv_version):
            self.spans.append((num_generated, version, kv_version))

    def version_spans(self, num_generated: int) -> tuple[tuple[VersionSpan, ...], tuple[int, ...]]:
        """The spans over [0, num_generated) without empty ones, and the `kv_version` of each."""
        ends = [start for start, _, _ in self.spans[1:]] + [num_generated]
        whole = [
            (VersionSpan(start=start, end=end, version=version), kv_version)
            for (start, version, kv_version), end in zip(self.spans, ends, strict=True)
            if start < end
        ]
        return tuple(span for span, _ in whole), tuple(kv_version for _, kv_version in whole)


@dataclass(slots=True, eq=False)
class Scoring:
    """One `ScoreOrder`: its rows finish one by one and are answered together."""

    order: ScoreOrder
    num_left: int
    rows: list[ScoredRow] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ScoredRow(Sequence):
    """A row being scored.

    Attributes:
        scoring: the order it belongs to.
        logprobs: float32 [T]; filled up to `computed`.
    """

    scoring: Scoring = field(kw_only=True)
    logprobs: NDArray[np.float32] = field(kw_only=True)

    @property
    def uses_cache(self) -> bool:
        """As the order says."""
        return self.scoring.order.use_cache


def sampling_kinds(sampling: SamplingParams) -> int:
    """The bits of `SamplerRows.kinds` of one request."""
    if sampling.temperature == 0:
        return GREEDY
    kinds = SCALED if sampling.temperature != 1 else 0
    if sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0:
        kinds |= TRUNCATED
    return kinds
