"""Requests on their way through the server: one flight each, in one or several parts.

A flight has several parts when a publication split it: what had been sampled is kept, and the rest
is asked for with a longer prompt. `done` parts are joined to one reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from milepost.actors.engine.interface import Finished, GenerateOrder
from milepost.actors.engine.sglang.wire import AnswerError, Sampled
from milepost.messages.shared import FinishReason, VersionSpan

Number = TypeVar("Number", np.int32, np.float32)
Stacked = TypeVar("Stacked", np.int32, np.float32, np.uint8 | np.int16)


@dataclass(slots=True)
class Flight:
    """One `Generate` in the server.

    Attributes:
        order: what was asked.
        tokens_max: most tokens of the whole reply, within the context.
        parts: what has been sampled, each part's spans counted from its own first token.
        name: of the part that is being sampled, as the server knows it; empty between parts.
        aborted: somebody wants it to end.
        split: a publication ended this part; the rest is to be asked for.
    """

    order: GenerateOrder
    tokens_max: int
    parts: list[Sampled] = field(default_factory=list)
    name: str = ""
    aborted: bool = False
    split: bool = False

    @property
    def num_tokens(self) -> int:
        """Sampled so far."""
        return sum(len(part.token_ids) for part in self.parts)

    @property
    def row(self) -> NDArray[np.int32]:
        """int32 [P + N]: the prompt and what has been sampled."""
        if not self.parts:
            return self.order.token_ids
        return np.concatenate([self.order.token_ids, *(part.token_ids for part in self.parts)])

    def take(self, part: Sampled, version: int, *, has_spans: bool) -> bool:
        """Keep a part; True when the reply has ended.

        Args:
            part: as the server answered.
            version: that served while this part was sampled, if only one did.
            has_spans: the server says which versions did.

        Raises:
            AnswerError: its spans leave tokens without a version.
        """
        num_tokens = len(part.token_ids)
        spans = part.spans
        if not has_spans:
            whole = VersionSpan(start=0, end=num_tokens, version=version)
            spans = (whole,) if num_tokens else ()
        else:
            ends = [0, *(span.end for span in spans)]
            if [span.start for span in spans] != ends[:-1] or ends[-1] != num_tokens:
                raise AnswerError(f"versions {spans} do not cover {num_tokens} tokens")
        self.parts.append(replace(part, spans=spans))
        goes_on = (
            self.split
            and not self.aborted
            and part.finish_reason is FinishReason.ABORT
            and self.num_tokens < self.tokens_max
        )
        self.split, self.name = False, ""
        return not goes_on

    def finished(self, *, keeps_caches: bool = False) -> Finished:
        """The reply, whole.

        Args:
            keeps_caches: within a part, keys and values may have outlived a change of version.
                A new part begins with none: its version has prefixes of its own.
        """
        spans: list[VersionSpan] = []
        kv_versions: list[int] = []
        offset = 0
        for part in self.parts:
            for span in part.spans:
                kv_version = part.spans[0].version if keeps_caches else span.version
                if spans and spans[-1].version == span.version:
                    last, kv_version = spans.pop(), min(kv_versions.pop(), kv_version)
                    start = last.start
                else:
                    start = offset + span.start
                end, version = offset + span.end, span.version
                spans.append(VersionSpan(start=start, end=end, version=version))
                kv_versions.append(kv_version)
            offset += len(part.token_ids)
        routes = [part.routes for part in self.parts]
        reason = self.parts[-1].finish_reason if self.parts else FinishReason.ABORT
        if reason is FinishReason.ABORT and offset >= self.tokens_max:
            reason = FinishReason.LENGTH
        return Finished(
            key=self.order.key,
            token_ids=_joined([part.token_ids for part in self.parts], np.int32),
            logprobs=_joined([part.logprobs for part in self.parts], np.float32),
            spans=tuple(spans),
            finish_reason=reason,
            cached_tokens=self.parts[0].cached_tokens if self.parts else 0,
            kv_versions=tuple(kv_versions),
            top_token_ids=_stacked([part.top_token_ids for part in self.parts]),
            top_logprobs=_stacked([part.top_logprobs for part in self.parts]),
            # Each part tells what the one before did not.
            routes=None if reason is FinishReason.ABORT else _stacked(routes),
        )


def _joined(parts: list[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    return np.concatenate([np.empty(0, dtype), *parts])


def _stacked(parts: list[NDArray[Stacked] | None]) -> NDArray[Stacked] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None
