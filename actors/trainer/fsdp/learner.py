"""One rank's policy and how a batch moves it: the numerical heart of the trainer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milepost.actors.trainer.fsdp.flops import ModelFlops, peak_tflops, tflops_metrics
from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.model import PackedPolicy
from milepost.actors.trainer.fsdp.optimizer import Optimizer
from milepost.actors.trainer.fsdp.packing import Packed, empty_microbatch, pack, pack_minibatch
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.trainer.losses.aggregate import Aggregation
from milepost.actors.trainer.losses.logprobs import EntropyUse
from milepost.actors.trainer.losses.metrics import MAXIMA, SUMS, finish_metrics
from milepost.actors.trainer.losses.objective import Objective, Terms, policy_terms, sft_terms
from milepost.actors.trainer.rows import Minibatch, Row
from milepost.actors.trainer.works import StepOutcome


class BatchDiffers(ValueError):
    """The batch's normalisers are not those of its rows: its gradient would be scaled wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """How batches become gradients."""

    objective: Objective
    aggregation: Aggregation
    microbatch_tokens_max: int
    keeps_logprobs: bool = False
    """Keep what was computed of each row, for `Learner.take_logprobs`."""


class _Kept(NamedTuple):
    """Log-probs of one micro-batch's loss tokens, float [N], before the step."""

    indices: tuple[int, ...]
    counts: tuple[int, ...]
    logprobs: Tensor


class Learner:
    """Trains and scores. Every public method is collective: all ranks call it in the same order."""

    def __init__(
        self,
        policy: ShardedPolicy,
        optimizer: Optimizer,
        group: RankGroup,
        settings: LearnerSettings,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.group = group
        self.moved = False
        """A step with a gradient and a learning rate came since whoever reads this took it back."""
        self._settings = settings
        self._model = ModelFlops.of(policy.module.config)
        self._peak = peak_tflops(group.device, policy.compute)
        self._kept: list[list[_Kept]] = []
        """Of each micro-batch of each minibatch of the last step."""
        objective = settings.objective
        self._entropy: EntropyUse = "metric"
        if objective.estimator == "sft":
            self._entropy = "none"
        elif objective.entropy_coef:
            self._entropy = "loss"

    def train(self, minibatches: Sequence[Minibatch], version: int) -> StepOutcome:
        """One optimizer step for each minibatch.

        Log-probs "at the start of the batch" of the first minibatch are those of its own forward
        pass, bit for bit; the later ones' are computed before any weight moves.

        Args:
            minibatches: this rank's rows of each.
            version: being trained.

        Raises:
            BatchDiffers: a minibatch's loss tokens over all ranks are not what the batch says.
        """
        started = time.perf_counter()
        plan = [self._pack(minibatch) for minibatch in minibatches]
        self._agree(plan, minibatches)
        packed_s = time.perf_counter()
        old = [self._old_logprobs(packs) if number else None for number, packs in enumerate(plan)]
        if self.group.device.type == "cuda" and len(plan) > 1:
            torch.cuda.synchronize(self.group.device)  # else the time is that of giving orders
        prepared_s = time.perf_counter()
        sums = self._zeros(len(SUMS) + 3)
        maxima = self._zeros(len(MAXIMA))
        norms: list[float] = []
        lr = 0.0
        self._kept = []
        for packs, before in zip(plan, old, strict=True):
            lr = self.optimizer.lr
            self._kept.append([])
            self._accumulate(packs, before, version, sums, maxima)
            norms.append(self.optimizer.step())
            self.moved |= lr > 0 and norms[-1] > 0
            if not isfinite(norms[-1]):
                break
        sums[-3] = sum(packed.num_tokens for packs in plan for packed in packs)
        sums[-2], sums[-1] = self._flops(minibatches), self._flops(minibatches[1:])
        *totals, num_tokens, flops, flops_again = self.group.total(sums).tolist()
        highest = self.group.highest(maxima).tolist()
        ended_s = time.perf_counter()
        train_s, log_probs_s = ended_s - prepared_s, prepared_s - packed_s
        metrics = finish_metrics(
            self._settings.objective.estimator, totals, highest, num_minibatches=len(norms)
        )
        metrics |= {
            "train/grad_norm": sum(norms) / len(norms),
            "train/lr-pg_0": lr,
            "train/optimizer_step": float(self.optimizer.step_count),
            "perf/data_preprocess_time": packed_s - started,
            "perf/log_probs_time": log_probs_s,
            "perf/actor_train_time": train_s,
            "perf/actor_train_tok_per_s": num_tokens / train_s,
            **tflops_metrics(
                flops / self.group.world_size,
                flops_again / self.group.world_size,
                train_s=train_s,
                log_probs_s=log_probs_s,
                peak=self._peak,
            ),
        }
        return StepOutcome(
            metrics=metrics,
            num_tokens=int(num_tokens),
            train_s=ended_s - started,
            spread=totals[SUMS.index("advantage_abs")] > 0,
            tripped=_not_finite(norms, totals),
        )

    def _flops(self, minibatches: Sequence[Minibatch]) -> float:
        """Operations of a forward pass over this rank's rows; 0 when nobody knows."""
        if self._model is None:
            return 0.0
        return self._model.forward(len(row.token_ids) for each in minibatches for row in each.rows)

    def score(self, rows: Sequence[NDArray[Any]], temperature: float) -> list[NDArray[Any]]:
        """Log-probs of every token of given rows under the present weights.

        Args:
            rows: int32 [T] each.
            temperature: logits are divided by it.

        Returns:
            float32 [T] each; position 0 is predicted by nothing and is 0.
        """
        packed = pack(
            [_scored_row(row, temperature) for row in rows],
            torch.zeros(sum(len(row) - 1 for row in rows)),
            self.group.device,
        )
        with self._scoring() as module:
            logprobs, _ = module(packed, "none")
        parts = np.split(logprobs.cpu().numpy(), np.cumsum([len(row) - 1 for row in rows])[:-1])
        return [np.concatenate([np.zeros(1, np.float32), part]) for part in parts]

    def next_logprobs(self, token_ids: NDArray[Any]) -> NDArray[Any]:
        """Log-probs of every token as the one after a row, at temperature 1. Collective.

        Args:
            token_ids: int32 [T].

        Returns:
            float32 [V], nats.
        """
        # The last token is there to be predicted, whichever it is: nothing attends to it.
        row = Row(
            token_ids=np.append(token_ids, token_ids[-1]),
            loss_positions=np.array([len(token_ids)]),
            rollout_logprobs=np.zeros(1, np.float32),
            versions=np.zeros(1, np.int64),
        )
        packed = pack([row], torch.zeros(1), self.group.device)
        with self._scoring() as module:
            every, _ = module(packed, "none", every_token=True)
        logprobs: NDArray[Any] = every[0].cpu().numpy()
        return logprobs

    def take_logprobs(self) -> list[list[NDArray[Any]]]:
        """What the last step computed of each row of each minibatch, before it moved any weight.

        Returns:
            float32 [N] for each row of N loss tokens, nats; none unless `keeps_logprobs` is set.
        """
        kept, self._kept = self._kept, []
        return list(map(_by_row, kept))

    def _pack(self, minibatch: Minibatch) -> list[Packed]:
        return pack_minibatch(
            minibatch,
            tokens_max=self._settings.microbatch_tokens_max,
            aggregation=self._settings.aggregation,
            device=self.group.device,
        )

    def _agree(self, plan: list[list[Packed]], minibatches: Sequence[Minibatch]) -> None:
        """Give all ranks the same number of micro-batches, and check the normalisers."""
        tokens = [sum(len(row.loss_positions) for row in each.rows) for each in minibatches]
        if self.group.world_size > 1:
            counts = torch.tensor([len(packs) for packs in plan], device=self.group.device)
            for packs, most in zip(plan, self.group.highest(counts).tolist(), strict=True):
                while len(packs) < most:
                    packs.append(empty_microbatch(self.group.device))
            totals = torch.tensor(tokens, device=self.group.device)
            tokens = self.group.total(totals).tolist()
        for number, (found, minibatch) in enumerate(zip(tokens, minibatches, strict=True)):
            if found != minibatch.loss_tokens:
                raise BatchDiffers(
                    f"minibatch {number} says {minibatch.loss_tokens} loss tokens, its rows over "
                    f"{self.group.world_size} ranks hold {found}"
                )

    def _old_logprobs(self, packs: list[Packed]) -> list[Tensor]:
        with self._scoring() as module:
            return [module(packed, "none")[0] for packed in packs]

    @contextmanager
    def _scoring(self) -> Iterator[PackedPolicy]:
        """The policy for passes that do not train: without gradients, and nothing is dropped."""
        module = self.policy.module.eval()
        try:
            with torch.no_grad():
                yield module
        finally:
            module.train()

    def _accumulate(
        self,
        packs: list[Packed],
        old: list[Tensor] | None,
        version: int,
        sums: Tensor,
        maxima: Tensor,
    ) -> None:
        """Gradient of one minibatch, a micro-batch at a time."""
        for number, packed in enumerate(packs):
            self.policy.accumulate(last=number == len(packs) - 1)
            logprobs, entropy = self.policy.module(packed, self._entropy)
            self._count_routes(sums)
            before = logprobs.detach() if old is None else old[number]
            if self._settings.keeps_logprobs:
                self._kept[-1].append(_Kept(packed.indices, packed.counts, before))
            terms = self._terms(packed, logprobs, before, entropy, version)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            sums[: len(SUMS)] += terms.sums
            torch.maximum(maxima, terms.maxima, out=maxima)

    def _count_routes(self, sums: Tensor) -> None:
        """How often the trainer would have chosen other experts than it replayed just now."""
        if (replay := self.policy.module.replay) is not None:
            differing, places = replay.mismatches()
            sums[SUMS.index("routes_differing")] += differing
            sums[SUMS.index("routes")] += places

    def _terms(
        self,
        packed: Packed,
        logprobs: Tensor,
        old: Tensor,
        entropy: Tensor | None,
        version: int,
    ) -> Terms:
        objective = self._settings.objective
        if objective.estimator == "sft":
            return sft_terms(logprobs, packed.tokens)
        assert entropy is not None, "the policy objective measures entropy"
        return policy_terms(objective, logprobs, old, entropy, packed.tokens, version=version)

    def _zeros(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64, device=self.group.device)


def _by_row(kept: Sequence[_Kept]) -> list[NDArray[Any]]:
    rows: dict[int, NDArray[Any]] = {}
    for each in kept:
        if each.indices:
            logprobs = each.logprobs.float().cpu().numpy()
            parts = np.split(logprobs, np.cumsum(each.counts)[:-1])
            rows.update(zip(each.indices, parts, strict=True))
    return [rows[index] for index in sorted(rows)]


def _scored_row(token_ids: NDArray[Any], temperature: float) -> Row:
    length = len(token_ids)
    return Row(
        token_ids=token_ids,
        loss_positions=np.arange(1, length),
        rollout_logprobs=np.zeros(length - 1, np.float32),
        versions=np.zeros(length - 1, np.int64),
        temperature=temperature,
    )


def _not_finite(norms: list[float], totals: list[float]) -> str:
    if bad := int(totals[SUMS.index("nonfinite")]):
        return f"log-probs of {bad} tokens are not finite"
    if not isfinite(norms[-1]):
        return f"gradient norm is {norms[-1]} in minibatch {len(norms) - 1}"
    if not isfinite(totals[SUMS.index("loss")]):
        return f"loss is {totals[SUMS.index('loss')]}"
    return ""
