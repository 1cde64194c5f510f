"""When training goes wrong in a way that will not heal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.works import StepOutcome
from milepost.messages.supervisor import NOT_FINITE, GuardTripped

SAME_VERSION: Final = "train/train_rollout_logprob_abs_diff_same_version"


@dataclass(slots=True)
class Guard:
    """Watches every step's outcome.

    - `not_finite`: a loss, gradient or log-prob is NaN or infinite.
    - `no_spread`: no group had different rewards, for several batches in a row; the gradient is
      zero and the policy that made these groups does not change any more.
    - `logprob_difference`: trainer and engines compute different log-probs for tokens sampled from
      the very weights being trained; what looks like staleness then is a fault.
    """

    plan: TrainerPlan
    batches_without_spread: int = 0
    spoiled: bool = False
    """The weights are of no step, and must not be saved."""

    def judge(self, actor: str, step: int, outcome: StepOutcome) -> GuardTripped | None:
        """The guard that trips at this step, if one does."""
        if outcome.tripped:
            self.spoiled = True
            return GuardTripped(
                actor=actor, guard=NOT_FINITE, reason=f"step {step}: {outcome.tripped}"
            )
        if self.plan.sft:
            return None
        self.batches_without_spread = 0 if outcome.spread else self.batches_without_spread + 1
        most = self.plan.batches_without_spread_max
        if most and self.batches_without_spread >= most:
            return GuardTripped(
                actor=actor,
                guard="no_spread",
                reason=(
                    f"no group of the last {most} batches had different rewards, up to step "
                    f"{step}: nothing is learned any more (guard.batches_without_spread_max)"
                ),
            )
        limit = self.plan.logprob_difference_max
        difference = outcome.metrics.get(SAME_VERSION, 0.0)
        if limit and difference > limit:
            return GuardTripped(
                actor=actor,
                guard="logprob_difference",
                reason=(
                    f"step {step}: mean |trainer - engine| log-prob of tokens of the same version "
                    f"is {difference:.3g} nats, guard.logprob_difference_max is {limit:.3g}"
                ),
            )
        return None
