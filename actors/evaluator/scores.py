"""Scores of one version: what was measured, on how many prompts, and what could not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from milepost.messages.evaluator import Evaluation, Score, Transcript
from milepost.messages.trajectory import ERROR_CATEGORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One held-out episode that ended with a verdict."""

    index: int
    """Of the prompt, in the fixed order."""
    category: str
    reward: float
    metrics: dict[str, float]
    num_sampled_tokens: int
    truncated: bool


@dataclass(slots=True)
class Tally:
    """Outcomes of one way of choosing tokens, and how many prompts have none."""

    num_prompts: int
    outcomes: list[Outcome] = field(default_factory=list)
    num_failed: int = 0
    """The agent or environment failed every time; never counted as a reward of zero."""
    num_mixed: int = 0
    """Refused: tokens of another version than the one measured."""
    transcripts: dict[int, Transcript] = field(default_factory=dict)

    @property
    def num_missing(self) -> int:
        """Prompts that had no time to end."""
        return self.num_prompts - len(self.outcomes) - self.num_failed - self.num_mixed


def score(tally: Tally, success_metric: str) -> Score | None:
    """The score of these outcomes; None when there is no outcome at all."""
    outcomes = sorted(tally.outcomes, key=lambda outcome: outcome.index)
    if not outcomes:
        return None
    metrics = _means([outcome.metrics for outcome in outcomes])
    return Score(
        num_episodes=len(outcomes),
        num_failed=tally.num_failed,
        num_mixed=tally.num_mixed,
        num_missing=tally.num_missing,
        success=metrics.get(success_metric),
        reward=fmean(outcome.reward for outcome in outcomes),
        success_by_category=_by_category(outcomes, success_metric),
        metrics=metrics,
        truncated_ratio=fmean(outcome.truncated for outcome in outcomes),
        sampled_tokens=fmean(outcome.num_sampled_tokens for outcome in outcomes),
    )


def no_score(version: int, mode: str, tally: Tally) -> str:
    """Why nothing was scored, in counts."""
    return (
        f"version {version} {mode}: no score, of {tally.num_prompts} prompts "
        f"{tally.num_failed} failed, {tally.num_mixed} had mixed versions, "
        f"{tally.num_missing} had no time"
    )


def _means(reported: Sequence[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metrics in reported:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    # Who names no category is in none; who reports no number says nothing of it.
    return {
        name: sum(each) / len(reported) if name.startswith(ERROR_CATEGORY) else fmean(each)
        for name, each in sorted(values.items())
    }


def _by_category(outcomes: Sequence[Outcome], success_metric: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.category and success_metric in outcome.metrics:
            values.setdefault(outcome.category, []).append(outcome.metrics[success_metric])
    return {category: fmean(values[category]) for category in sorted(values)}


def recorded(evaluation: Evaluation) -> dict[str, float]:
    """What it adds to an object of metrics.jsonl: `eval/{sampled,greedy}/...`."""
    metrics = {
        "eval/step": float(evaluation.version),
        "eval/duration_seconds": evaluation.seconds,
        "eval/delay_seconds": evaluation.delay_s,
        "eval/lag_steps": float(evaluation.lag_steps),
    }
    metrics |= {f"eval/external/{name}": value for name, value in evaluation.external.items()}
    for mode, each in (("sampled", evaluation.sampled), ("greedy", evaluation.greedy)):
        if each is not None:
            metrics |= {
                f"eval/{mode}/reward": each.reward,
                f"eval/{mode}/episodes": float(each.num_episodes),
                f"eval/{mode}/failed": float(each.num_failed),
                f"eval/{mode}/mixed": float(each.num_mixed),
                f"eval/{mode}/missing": float(each.num_missing),
                f"eval/{mode}/truncated_ratio": each.truncated_ratio,
                **{f"eval/{mode}/{name}": value for name, value in each.metrics.items()},
            }
    return metrics


def text(evaluation: Evaluation, success_metric: str) -> str:
    """One line for people."""
    parts = []
    for mode, each in (("sampled", evaluation.sampled), ("greedy", evaluation.greedy)):
        if each is None:
            continue
        counts = (
            (each.num_failed, "failed"),
            (each.num_mixed, "refused for mixed versions"),
            (each.num_missing, "out of time"),
        )
        others = "".join(f", {count} {word}" for count, word in counts if count)
        success = "" if each.success is None else f"{success_metric} {each.success:.3f}, "
        parts.append(
            f"{mode} {success}reward {each.reward:.3f} on {each.num_episodes} prompts{others}"
        )
    if evaluation.external:
        numbers = (f"{name} {value:.4g}" for name, value in evaluation.external.items())
        parts.append(f"external {', '.join(numbers)}")
    said = "; ".join(parts) or "no score"
    return f"version {evaluation.version}: {said} in {evaluation.seconds:.1f} s"
