"""One step: a forward pass, a token for every row that decodes, prefill for rows that are new."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from milepost.actors.engine.embedded.cache import KeyValueCache
from milepost.actors.engine.embedded.decoder import Decoder
from milepost.actors.engine.embedded.graphs import DecodeGraphs
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.planning import ROWS_MIN, Chunk, Plan, Planner
from milepost.actors.engine.embedded.rows import Cohort, Rows
from milepost.actors.engine.embedded.sampling import Sampled, sample, token_logprobs
from milepost.actors.engine.embedded.scheduler import Scheduler
from milepost.actors.engine.embedded.sequences import Reply, ScoredRow
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOGITS_MAX: Final = 1 << 22
"""Most logits computed at once for scored rows."""


@dataclass(slots=True)
class StepResult:
    """What ended in a step; still in its row, for the engine to take out.

    Attributes:
        replies: with the reason.
        poisoned: replies whose log-probs turned NaN.
        scored: rows whose log-probs are complete.
    """

    replies: list[tuple[Reply, FinishReason]] = field(default_factory=list)
    poisoned: list[Reply] = field(default_factory=list)
    scored: list[ScoredRow] = field(default_factory=list)


class Stepper:
    """Computes steps.

    Args:
        decoder: the model.
        scheduler: who computes.
        cache: keys and values.
        prefill_tokens_max: prompt tokens of one step.

    Attributes:
        num_steps: forward passes so far.
        num_generated: tokens sampled so far.
        num_prefilled: prompt tokens computed so far.
    """

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        cache: KeyValueCache,
        prefill_tokens_max: int,
    ) -> None:
        self._decoder, self._scheduler = decoder, scheduler
        self._rows: Rows = scheduler.rows
        graphed = cache.device.type == "cuda" and decoder.is_dense
        self._planner = Planner(scheduler, cache, prefill_tokens_max, graphed=graphed)
        self._graphs = DecodeGraphs(decoder, self._planner, cache.device) if graphed else None
        self._cache, self._device = cache, cache.device
        self._cohort: Cohort | None = None
        self.num_steps = 0
        self.num_generated = 0
        self.num_prefilled = 0

    def step(self, weights: Parameters) -> StepResult:
        """Give rows to who waits, then compute one pass; under `torch.inference_mode`."""
        result = StepResult()
        self._scheduler.admit()
        plan = self._planner.plan()
        if plan is None:
            return result
        self.num_steps += 1
        states = self._states(weights, plan)
        ready: list[Reply] = []
        last_tokens: list[int] = []
        for chunk in chain.from_iterable(group.chunks for group in plan.groups):
            sequence = chunk.sequence
            is_whole = self._advance(chunk)
            if isinstance(sequence, ScoredRow):
                self._score(weights, sequence, chunk, states)
                if is_whole:
                    result.scored.append(sequence)
            elif is_whole:
                assert isinstance(sequence, Reply), f"{type(sequence).__name__} cannot decode"
                ready.append(sequence)
                last_tokens.append(chunk.last_token)
        self._rows.kv_length[self._scheduler.where] += 1
        if ready or plan.decoding.size:
            picked = plan.decoding_tokens
            if ready:
                picked = np.concatenate((picked, last_tokens))
            logits = self._decoder.logits(weights, _pick(states, picked))[: picked.shape[0]]
            self._sample(logits, plan.decoding, ready, result)
        return result

    def _states(self, weights: Parameters, plan: Plan) -> Tensor:
        if self._graphs is not None and not plan.groups:
            return self._graphs.hidden(weights, plan)
        batch = self._planner.batch(plan)
        if self._cache.routes is None:
            return self._decoder.hidden(weights, batch)
        chosen: list[Tensor] = []
        states = self._decoder.hidden(weights, batch, chosen)
        self._cache.write_routes(plan.columns[2], chosen)
        return states

    def _advance(self, chunk: Chunk) -> bool:
        """Note that a chunk is computed; True when it was the sequence's last."""
        sequence = chunk.sequence
        self.num_prefilled += chunk.end - chunk.start
        sequence.computed = chunk.end
        kv_length = self._rows.kv_length
        kv_length[sequence.row] = max(int(kv_length[sequence.row]), chunk.end)
        return chunk.end == len(sequence.tokens)

    def _score(self, weights: Parameters, row: ScoredRow, chunk: Chunk, states: Tensor) -> None:
        """Log-probs of the tokens that follow the chunk's tokens."""
        targets = torch.from_numpy(row.tokens[chunk.start + 1 : chunk.end + 1].astype(np.int64))
        own = states[chunk.offset : chunk.offset + targets.shape[0]]
        targets = targets.to(states.device)
        block = max(_LOGITS_MAX // weights.head.shape[0], ROWS_MIN)
        temperature = row.scoring.order.temperature
        for first in range(0, targets.shape[0], block):
            part = slice(first, first + block)
            logits = self._decoder.logits(weights, own[part])
            logprobs = token_logprobs(logits, targets[part], temperature).cpu().numpy()
            start = chunk.start + 1 + first
            row.logprobs[start : start + logprobs.shape[0]] = logprobs

    def _sample(
        self,
        logits: Tensor,
        decoding: NDArray[np.int64],
        ready: list[Reply],
        result: StepResult,
    ) -> None:
        """Append a token to every row that decodes or has just been prefilled."""
        cohort = self._cohort_of(decoding, ready)
        sampled = sample(logits, cohort.sampler, self._rows.uniforms(cohort))
        over = self._rows.append(cohort, sampled)
        self.num_generated += over.shape[0]
        if sampled.top_ids is not None:
            self._keep_top(cohort.rows, sampled)
        continuing = ready
        if over.any():
            self._end(cohort, sampled, over, result)
            is_over = over[decoding.shape[0] :].tolist()
            continuing = [reply for reply, ends in zip(ready, is_over, strict=True) if not ends]
        self._scheduler.start_decoding(continuing)

    def _cohort_of(self, decoding: NDArray[np.int64], ready: list[Reply]) -> Cohort:
        if ready:
            rows = np.concatenate((decoding, [reply.row for reply in ready]))
            return self._rows.cohort(rows, self._device)
        # The scheduler makes a new array whenever the rows that decode change.
        if self._cohort is None or self._cohort.rows is not decoding:
            self._cohort = self._rows.cohort(decoding, self._device)
        return self._cohort

    def _end(
        self, cohort: Cohort, sampled: Sampled, over: NDArray[np.bool_], result: StepResult
    ) -> None:
        stops = cohort.is_stop(sampled.ids)
        for index in np.flatnonzero(over).tolist():
            row = int(cohort.rows[index])
            reply = self._rows.owner[row]
            assert isinstance(reply, Reply), f"row {row} ended without a reply in it"
            if np.isnan(sampled.logprobs[index]):
                result.poisoned.append(reply)
            else:
                reason = FinishReason.STOP if stops[index] else FinishReason.LENGTH
                result.replies.append((reply, reason))

    def _keep_top(self, rows: NDArray[np.int64], sampled: Sampled) -> None:
        assert sampled.top_ids is not None
        assert sampled.top_logprobs is not None
        for index, row in enumerate(rows.tolist()):
            reply = self._rows.owner[row]
            assert isinstance(reply, Reply), f"row {row} sampled without a reply in it"
            wanted = reply.order.sampling.top_logprobs
            if wanted:
                pair = sampled.top_ids[index, :wanted], sampled.top_logprobs[index, :wanted]
                reply.top.append(pair)


def _pick(states: Tensor, picked: NDArray[np.int64]) -> Tensor:
    """The states whose logits are wanted first, and at least `ROWS_MIN` rows."""
    count = picked.shape[0]
    if count == states.shape[0] and count >= ROWS_MIN:
        return states
    padded = np.resize(picked, max(count, ROWS_MIN))
    return states.index_select(0, torch.from_numpy(padded).to(states.device))
