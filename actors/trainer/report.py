"""The metrics line of a step: what the buffer measured, what was computed, where time went."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.trainer.works import StepOutcome
from milepost.messages.buffer import Batch
from milepost.messages.supervisor import EventReported


@dataclass(slots=True)
class StepReport:
    """Times of the step under way.

    Attributes:
        idle_s: when the last step ended, or the actor started.
        begun_s: when the step under way began.
    """

    idle_s: float = 0.0
    begun_s: float = 0.0

    def line(self, step: int, batch: Batch, outcome: StepOutcome, now_s: float) -> dict[str, float]:
        """Metrics of the step that ended now; the next one's time begins."""
        step_s, wait_s = now_s - self.idle_s, max(0.0, self.begun_s - self.idle_s)
        self.idle_s = now_s
        return {
            **batch.metrics,
            **outcome.metrics,
            "rollout/step": float(step),
            "train/step": float(step),
            "perf/step_time": step_s,
            "perf/train_time": outcome.train_s,
            "perf/train_wait_time": wait_s,
            "perf/wait_time_ratio": wait_s / step_s if step_s > 0 else 0.0,
            "perf/batch_wait_time": batch.wait_s,
            "perf/tokens": float(outcome.num_tokens),
        }


def untrained(
    source: str, step: int, outcome: StepOutcome, metrics: dict[str, float]
) -> EventReported:
    """What is told of a batch that changed no weight.

    It makes no version: as metrics its figures would stand for those of the version before.
    """
    text = f"the batch of step {step} changed no weight: {outcome.tripped}"
    return EventReported(source=source, kind="not_trained", text=text, values={**metrics})
