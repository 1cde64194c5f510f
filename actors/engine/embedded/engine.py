"""The embedded engine: one model, one cache, one step at a time. No thread of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from milepost.actors.engine.embedded.cache import KeyValueCache
from milepost.actors.engine.embedded.decoder import Decoder
from milepost.actors.engine.embedded.rows import Rows
from milepost.actors.engine.embedded.scheduler import Scheduler
from milepost.actors.engine.embedded.sequences import Reply, ScoredRow, Scoring, Sequence
from milepost.actors.engine.embedded.shape import ModelShape
from milepost.actors.engine.embedded.staging import Staging
from milepost.actors.engine.embedded.stepping import Stepper
from milepost.actors.engine.interface import (
    Finished,
    GenerateOrder,
    Outcome,
    Progress,
    Rejected,
    ScoreFinished,
    ScoreOrder,
    Switched,
)
from milepost.messages.engine import PauseMode
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray


class EmbeddedEngine:
    """Continuous batching over a static cache.

    Args:
        shape: the decoder.
        dtype: of weights, keys and values.
        device: where it computes.
        slots: rows of the cache.
        running_max: sequences in rows at once, at most `slots`.
        context_tokens: most tokens of one row.
        prefill_tokens_max: prompt tokens of one step.
        keeps_routes: note the experts of every token; the model must have some.

    Attributes:
        staging: serving and incoming weights. Its `open`, `write`, `check` and `drop` may be called
            from another thread than everything else here.
        version: of the weights that serve, -1 before the first.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        dtype: torch.dtype,
        device: torch.device,
        slots: int,
        running_max: int,
        context_tokens: int,
        prefill_tokens_max: int,
        keeps_routes: bool = False,
    ) -> None:
        if running_max > slots:
            raise ValueError(f"running_max {running_max} is above slots {slots}")
        self._vocab_size = shape.vocab_size
        self._context_tokens = context_tokens
        self.staging = Staging(shape, dtype, device)
        self.version = -1
        cache = KeyValueCache(
            shape, slots, context_tokens, dtype, device, keeps_routes=keeps_routes
        )
        self._cache = cache
        self._rows = Rows(slots, context_tokens, shape.vocab_size)
        self._scheduler = Scheduler(self._rows, cache, running_max)
        decoder = Decoder(shape, cache)
        self._stepper = Stepper(decoder, self._scheduler, cache, prefill_tokens_max)
        self._in_flight: dict[str, Reply | Scoring] = {}
        self._streamed: dict[str, Reply] = {}

    # ---- orders --------------------------------------------------------------------------

    def generate(self, order: GenerateOrder) -> list[Outcome]:
        """Queue a reply; what is wrong with it comes back at once."""
        assert not order.adapter, f"an adapter of an engine that has none: {order.adapter}"
        if reason := self._fault(order.token_ids, self._context_tokens - 1):
            return [Rejected(order.key, reason)]
        reply = Reply(order.session_id, order.token_ids, order=order)
        reply.begin_version(0, self.version, keeps_cache=False)
        self._in_flight[order.key] = reply
        if order.stream:
            self._streamed[order.key] = reply
        self._scheduler.waiting.append(reply)
        return []

    def score(self, order: ScoreOrder) -> list[Outcome]:
        """Queue rows to be scored; what is wrong with them comes back at once."""
        for row in order.rows:
            if reason := self._fault(row, self._context_tokens):
                return [Rejected(order.key, reason)]
        if not order.rows:
            return [ScoreFinished(order.key, (), self.version)]
        scoring = Scoring(order, len(order.rows))
        for row in order.rows:
            logprobs = np.zeros(row.shape[0], np.float32)
            scoring.rows.append(ScoredRow("", row, scoring=scoring, logprobs=logprobs))
        self._in_flight[order.key] = scoring
        self._scheduler.waiting.extend(scoring.rows)
        return []

    def abort(self, request_ids: tuple[str, ...], session_ids: tuple[str, ...]) -> list[Outcome]:
        """End replies with what they have."""
        keys, sessions = set(request_ids), set(session_ids)
        aborted = [
            reply
            for key, reply in self._in_flight.items()
            if isinstance(reply, Reply) and (key in keys or reply.session_id in sessions)
        ]
        return [self._finish(reply, FinishReason.ABORT) for reply in aborted]

    def forget(self, session_ids: tuple[str, ...]) -> None:
        """The prefixes of these sessions may go first."""
        for session_id in session_ids:
            self._rows.forget(session_id)

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self._scheduler.has_work()

    def step(self) -> list[Outcome]:
        """One forward pass: a token for each decoding row, and some prefill.

        Call it under `torch.inference_mode`.

        Returns:
            What ended in it.
        """
        weights = self.staging.serving
        assert weights is not None, "a step before the first version"
        result = self._stepper.step(weights)
        outcomes: list[Outcome] = [self._finish(reply, why) for reply, why in result.replies]
        outcomes += [self._poison(reply) for reply in result.poisoned]
        outcomes += self._progress()
        for row in result.scored:
            outcomes += self._scored(row)
        return outcomes

    # ---- weights -------------------------------------------------------------------------

    def switch(self, version: int, mode: PauseMode) -> Switched:
        """Serve the staged weights, which were checked, as `version`; between two steps only.

        Rows that had sampled no token yet are computed anew in either mode: no prefix of an older
        version outlives the switch, except under replies that go on in place.
        """
        started_s = time.perf_counter()
        scheduler = self._scheduler
        self.staging.switch()
        self.version = version
        for sequence in reversed(scheduler.running()):
            if mode is PauseMode.RETRACT or not self._rows.decoding[sequence.row]:
                self._retract(sequence)
        for request in self._in_flight.values():
            if isinstance(request, Reply):
                num_generated = self._length(request) - request.prompt_length
                # What has a row still was not retracted.
                request.begin_version(num_generated, version, keeps_cache=request.row >= 0)
            else:
                self._restart(request)
        scheduler.new_weights()
        return Switched(time.perf_counter() - started_s, len(self._in_flight))

    def _retract(self, sequence: Sequence) -> None:
        if isinstance(sequence, Reply):
            row, start, length = sequence.row, sequence.prompt_length, self._length(sequence)
            sequence.tokens = self._rows.tokens[row, :length].copy()
            sequence.logprobs = self._rows.logprobs[row, start:length].copy()
            if self._rows.decoding[row]:
                sequence.routes = self._routes(sequence, length - 1)
        self._scheduler.retract(sequence)

    def _routes(self, reply: Reply, end: int) -> NDArray[np.uint8 | np.int16] | None:
        """Of the tokens [order.routes_start, end) of a reply in its row, if they are wanted.

        Those of a pass that was sampled from stay; passes after a retraction add to them.
        """
        start, cached = reply.order.routes_start, self._cache.routes
        if start is None:
            return None
        assert cached is not None, "routes are wanted where none are kept"
        known = reply.routes
        if known is None:
            return cached[reply.row, start:end].copy()
        return np.concatenate((known, cached[reply.row, start + len(known) : end]))

    def _restart(self, scoring: Scoring) -> None:
        # One answer is of one version: rows that were scored already are scored again.
        for row in scoring.rows:
            if row.computed == row.tokens.shape[0]:
                row.computed = 0
                self._scheduler.waiting.append(row)
        scoring.num_left = len(scoring.rows)

    def _progress(self) -> list[Progress]:
        """What streamed replies have sampled since the last time."""
        told = []
        for reply in self._streamed.values():
            first, end = reply.prompt_length + reply.num_streamed, self._length(reply)
            if end > first:
                token_ids = self._rows.tokens[reply.row, first:end].copy()
                reply.num_streamed += end - first
                told.append(Progress(reply.order.key, token_ids))
        return told

    # ---- ends ----------------------------------------------------------------------------

    def _length(self, reply: Reply) -> int:
        """Tokens of prompt and reply so far, between steps."""
        if reply.row >= 0 and self._rows.decoding[reply.row]:
            return int(self._rows.kv_length[reply.row]) + 1
        return len(reply.tokens)

    def _finish(self, reply: Reply, reason: FinishReason) -> Finished:
        row, start = reply.row, reply.prompt_length
        length = self._length(reply)
        if reason is not FinishReason.ABORT:
            # The token that ended it may be its first: then the row does not decode yet.
            length = int(self._rows.kv_length[row]) + 1
        routes = None
        if row >= 0:
            token_ids = self._rows.tokens[row, start:length].copy()
            logprobs = self._rows.logprobs[row, start:length].copy()
            if reason is not FinishReason.ABORT:
                routes = self._routes(reply, length - 1)
        else:
            token_ids, logprobs = reply.tokens[start:].copy(), reply.logprobs
        self._scheduler.remove(reply, keep=True)
        self._forget_request(reply)
        spans, kv_versions = reply.version_spans(length - start)
        wants_top = reply.order.sampling.top_logprobs > 0
        top_ids, top_logprobs = _stack_top(reply) if wants_top else (None, None)
        return Finished(
            reply.order.key,
            token_ids,
            logprobs,
            spans,
            reason,
            max(reply.cached_tokens, 0),
            kv_versions,
            top_ids,
            top_logprobs,
            routes,
        )

    def _poison(self, reply: Reply) -> Rejected:
        self._scheduler.remove(reply, keep=False, poisoned=True)
        self._forget_request(reply)
        return Rejected(reply.order.key, f"log-probs are NaN under version {self.version}")

    def _forget_request(self, reply: Reply) -> None:
        del self._in_flight[reply.order.key]
        self._streamed.pop(reply.order.key, None)

    def _scored(self, row: ScoredRow) -> list[Outcome]:
        scoring, key = row.scoring, row.scoring.order.key
        is_nan = bool(np.isnan(row.logprobs).any())
        self._scheduler.remove(row, keep=row.uses_cache, poisoned=is_nan)
        scoring.num_left -= 1
        if scoring.num_left:
            return []
        del self._in_flight[key]
        logprobs = tuple(scored.logprobs for scored in scoring.rows)
        if any(bool(np.isnan(values).any()) for values in logprobs):
            return [Rejected(key, f"log-probs are NaN under version {self.version}")]
        return [ScoreFinished(key, logprobs, self.version)]

    def _fault(self, token_ids: NDArray[np.int32], length_max: int) -> str:
        """What is wrong with a row of tokens; empty when nothing is."""
        length = token_ids.shape[0]
        if not 1 <= length <= length_max:
            return f"row has {length} tokens, between 1 and {length_max} fit the context"
        # Read as unsigned, a negative id is a huge one: one pass finds either.
        if int(token_ids.view(np.uint32).max()) >= self._vocab_size:
            bad = token_ids[(token_ids < 0) | (token_ids >= self._vocab_size)][0]
            return f"token id {bad} is outside the vocabulary of {self._vocab_size}"
        return ""

    def statistics(self) -> dict[str, object]:
        """Numbers for people; safe to read from another thread, each is one value."""
        scheduler, stepper = self._scheduler, self._stepper
        return {
            "version": self.version,
            "waiting": len(scheduler.waiting),
            "running": scheduler.num_running,
            "steps": stepper.num_steps,
            "generated_tokens": stepper.num_generated,
            "prefilled_tokens": stepper.num_prefilled,
            "prefix_tokens": scheduler.prefix_tokens,
            "prefixes_evicted": scheduler.evictions,
        }


def _stack_top(reply: Reply) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    width = reply.order.sampling.top_logprobs
    ids = np.array([ids for ids, _ in reply.top], np.int32).reshape(len(reply.top), -1)
    logprobs = np.array([values for _, values in reply.top], np.float32)
    if not reply.top:
        return np.empty((0, width), np.int32), np.empty((0, width), np.float32)
    return ids, logprobs
