"""Metrics of how the trajectories of a batch were sampled: turns, caches, time, what passed.

Names and formulas are those of other systems of the field, where these have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from statistics import fmean, median
from typing import Final, Literal

from milepost.actors.buffer.groups import StoredGroup
from milepost.messages.trajectory import (
    ERROR_CATEGORY,
    NON_GENERATION,
    REPETITIVE,
    Provenance,
    Trajectory,
)

PASSED: Final = 1.0
"""Reward of a trajectory that solved its task."""
MISMATCHES: Final = (
    "special_token_count",
    "special_token_type",
    "non_assistant_text",
    "assistant_text",
)
"""Kinds of difference between a row and its canonical rendering, the harmless one last."""


def sampling_metrics(
    groups: Sequence[StoredGroup], history: Literal["linear", "tree"], num_engines: int
) -> dict[str, float]:
    """All of this module.

    Args:
        groups: of the batch.
        history: of its sessions.
        num_engines: that sample for it.
    """
    rows = [row for group in groups for row in group.trajectories]
    members = [member for group in groups for member in group.members]
    repeating = {row.trajectory_id for row in rows if row.metadata.get(REPETITIVE) is True}
    return {
        **mismatch_metrics(groups, history),
        "rollout/repetition_frac": len(repeating) / len(members),
        **pass_rates([group.rewards for group in groups]),
        **error_categories(members),
        **turn_metrics(groups),
        **cache_metrics(rows, len(members)),
        **speed_metrics(groups, num_engines),
    }


def mismatch_metrics(
    groups: Sequence[StoredGroup], history: Literal["linear", "tree"]
) -> dict[str, float]:
    """Share of rows that differ from their canonical rendering, in any way and by kind.

    All but `assistant_text` should be 0: they mean a broken template or seam. `v1` are linear
    sessions, `v2` are trees, which may have several rows for each trajectory.
    """
    found = [set(row.certificate.mismatch_kinds) for group in groups for row in group.trajectories]
    name = f"rollout/tito_session_mismatch_rate/{'v1' if history == 'linear' else 'v2'}"
    metrics = {name: sum(map(bool, found)) / len(found)}
    if history == "tree":
        metrics["rollout/rows_per_trajectory"] = len(found) / sum(len(g.members) for g in groups)
    for kind in MISMATCHES:
        metrics[f"{name}/{kind}"] = sum(kind in kinds for kinds in found) / len(found)
    return metrics


def pass_rates(rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """Chance that one of k trajectories of a prompt passes, for k = 1, 2, 4, ...

    Of n trajectories of which c passed, `1 - C(n - c, k) / C(n, k)` is the unbiased estimate
    (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"); the mean over groups.

    Args:
        rewards: of each group; k goes up to the size of the smallest. None for groups of one.
    """
    smallest = min(map(len, rewards))
    if smallest < 2:
        return {}
    sizes = [2**power for power in range(smallest.bit_length())]
    return {f"passrate/pass@{k}": fmean(_pass_at(k, each) for each in rewards) for k in sizes}


def _pass_at(k: int, rewards: Sequence[float]) -> float:
    failed = sum(reward != PASSED for reward in rewards)
    return 1 - comb(failed, k) / comb(len(rewards), k)


def error_categories(members: Sequence[Trajectory]) -> dict[str, float]:
    """Share of trajectories in each category that agents or rewards named (`error_cat/...`)."""
    totals: dict[str, float] = {}
    for member in members:
        for name, value in member.metrics.items():
            if name.startswith(ERROR_CATEGORY):
                totals[name] = totals.get(name, 0.0) + value
    return {f"rollout/{name}": total / len(members) for name, total in sorted(totals.items())}


def turn_metrics(groups: Sequence[StoredGroup]) -> dict[str, float]:
    """Lengths of rows with and without what the policy did not say, and their replies."""
    rows = [row for group in groups for row in group.trajectories]
    raw = list(map(response_length, rows))
    own = [count for group in groups for count in group.loss_tokens]
    name, rounds = "response_length/response_length", "multi_turn_metric/round_number"
    return {
        "rollout/total_lengths": fmean(row.token_ids.shape[0] for row in rows),
        **_extremes(f"multi_turn/raw_{name}", raw),
        **_extremes(f"multi_turn/wo_obs_{name}", own),
        **_extremes(f"multi_turn/{rounds}", [len(row.turns) for row in rows]),
    }


def response_length(row: Trajectory) -> int:
    """Tokens from the first sampled one on: all that followed the first prompt."""
    first = bytes(row.provenance.data).find(Provenance.SAMPLED)
    return row.token_ids.shape[0] - first if first >= 0 else 0


def cache_metrics(rows: Iterable[Trajectory], num_trajectories: int) -> dict[str, float]:
    """Prompt tokens that engines had in their caches, of all and for each trajectory."""
    turns = [turn for row in rows for turn in row.turns if turn.trained]
    cached = sum(turn.cached_tokens for turn in turns)
    prompts = sum(turn.prompt_end for turn in turns)
    metrics = {"rollout/avg_cached_tokens_per_sample": cached / num_trajectories}
    return metrics | ({"rollout/prefix_cache_hit_rate": cached / prompts} if prompts else {})


def speed_metrics(groups: Sequence[StoredGroup], num_engines: int) -> dict[str, float]:
    """How long sampling took, how much of it was not sampling, and what came of it a second.

    The longest row is what a batch waits for. Rates are of the time from the batch's first group to
    its last trajectory; batches may overlap in it. None when a former incarnation saw one begin.
    """
    idle = [_idle(member) for group in groups for member in group.members]
    metrics: dict[str, float] = {}
    if max(idle) > 0:
        metrics = {
            "perf/non_generation_time/mean": fmean(idle),
            "perf/non_generation_time/median": median(idle),
            "perf/non_generation_time/max": max(idle),
            "perf/non_generation_time/min": min(idle),
        }
    times = [group.sampled_s for group in groups if group.sampled_s is not None]
    if not times:
        return metrics
    begun, ended = zip(*times, strict=True)
    seconds = max(ended) - min(begun)
    metrics["perf/rollout_time"] = seconds
    if seconds <= 0 or len(times) < len(groups):
        return metrics
    rows = [row for group in groups for row in group.trajectories]
    waited = list(map(_idle, rows))
    own = [count for group in groups for count in group.loss_tokens]
    metrics["perf/effective_tokens_per_gpu_per_sec"] = sum(own) / seconds / num_engines
    for kind, lengths in (("", list(map(response_length, rows))), ("effective_", own)):
        metrics |= _longest(f"perf/longest_{kind}sample", lengths, waited, seconds)
    return metrics


def _idle(row: Trajectory) -> float:
    return float(row.metadata.get(NON_GENERATION, 0.0))


def _longest(
    name: str, lengths: Sequence[int], idle: Sequence[float], seconds: float
) -> dict[str, float]:
    longest = max(lengths)
    metrics = {f"{name}_tokens_per_sec": longest / seconds}
    if max(idle) > 0:
        # Several may be as long.
        waited = fmean(s for s, length in zip(idle, lengths, strict=True) if length == longest)
        metrics[f"{name}_non_generation_time"] = waited
        if waited < seconds:
            rate = longest / (seconds - waited)
            metrics[f"{name}_tokens_per_sec_without_non_generation"] = rate
    return metrics


def _extremes(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_mean": fmean(values),
        f"{name}_max": float(max(values)),
        f"{name}_min": float(min(values)),
    }
