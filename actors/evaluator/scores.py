"""Scores of one version: what was measured, on how many prompts, and what could not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One held-out episode that ended with a verdict."""

    index: int
    """Of the prompt, in the fixed order."""
    reward: float
    metrics: dict[str, float]
    num_tokens: int
    num_sampled_tokens: int
    truncated: bool


@dataclass(slots=True)
class Tally:
    """Outcomes of one mode, and how many prompts have none."""

    num_prompts: int
    outcomes: list[Outcome] = field(default_factory=list)
    num_failed: int = 0
    """The agent or environment failed every time; never counted as a reward of zero."""
    num_mixed: int = 0
    """Refused: tokens of another version than the one measured."""
    transcripts: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def num_missing(self) -> int:
        """Prompts that had no time to end."""
        return self.num_prompts - len(self.outcomes) - self.num_failed - self.num_mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One score, attributed to the version that produced every token of it."""

    version: int
    mode: str
    n: int
    num_prompts: int
    failed: int
    mixed: int
    missing: int
    reward: float
    metrics: dict[str, float]
    """Means of what the agents reported, over the episodes that reported it."""
    truncated: float
    tokens: float
    seconds: float
    delay: float
    """Seconds from the publication of the version to this score."""

    def values(self, success_metric: str) -> dict[str, Any]:
        """As they are reported; `solved` is the success metric whatever its name."""
        return {
            "version": self.version,
            "mode": self.mode,
            "solved": self.metrics.get(success_metric),
            "reward": self.reward,
            "n": self.n,
            "num_prompts": self.num_prompts,
            "failed": self.failed,
            "mixed": self.mixed,
            "missing": self.missing,
            "truncated": self.truncated,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "delay": self.delay,
            "metrics": dict(self.metrics),
        }

    def recorded(self) -> dict[str, float]:
        """As one line of metrics.jsonl."""
        name = f"eval/{self.mode}"
        return {
            f"{name}/reward": self.reward,
            f"{name}/n": float(self.n),
            f"{name}/failed": float(self.failed),
            f"{name}/missing": float(self.missing),
            f"{name}/truncated_ratio": self.truncated,
            f"{name}/duration_seconds": self.seconds,
            f"{name}/delay_seconds": self.delay,
            **{f"{name}/{key}": value for key, value in self.metrics.items()},
        }

    def text(self, success_metric: str) -> str:
        """One line for people."""
        solved = self.metrics.get(success_metric)
        success = "" if solved is None else f"{success_metric} {solved:.3f}, "
        others = [
            f"{count} {word}"
            for count, word in (
                (self.failed, "failed"),
                (self.mixed, "refused for mixed versions"),
                (self.missing, "out of time"),
            )
            if count
        ]
        rest = f" ({', '.join(others)})" if others else ""
        return (
            f"version {self.version} {self.mode}: {success}reward {self.reward:.3f} "
            f"on {self.n} of {self.num_prompts} prompts{rest} in {self.seconds:.1f} s"
        )


def score(tally: Tally, *, version: int, mode: str, seconds: float, delay: float) -> Score | None:
    """The score of these outcomes; None when there is no outcome at all."""
    outcomes = sorted(tally.outcomes, key=lambda outcome: outcome.index)
    if not outcomes:
        return None
    return Score(
        version=version,
        mode=mode,
        n=len(outcomes),
        num_prompts=tally.num_prompts,
        failed=tally.num_failed,
        mixed=tally.num_mixed,
        missing=tally.num_missing,
        reward=fmean(outcome.reward for outcome in outcomes),
        metrics=_means([outcome.metrics for outcome in outcomes]),
        truncated=fmean(outcome.truncated for outcome in outcomes),
        tokens=fmean(outcome.num_sampled_tokens for outcome in outcomes),
        seconds=seconds,
        delay=delay,
    )


def _means(reported: Sequence[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for metrics in reported for name in metrics})
    return {name: fmean(metrics[name] for metrics in reported if name in metrics) for name in names}
