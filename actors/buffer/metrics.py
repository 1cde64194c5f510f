"""The `rollout/...` metrics of a batch, under the names that dashboards know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.staleness import versions_of


def batch_metrics(groups: Sequence[StoredGroup], success_metric: str) -> dict[str, float]:
    """What the trained groups are like: rewards, lengths, spread, success."""
    trajectories = [trajectory for group in groups for trajectory in group.members]
    lengths = [float(count) for group in groups for count in _response_lengths(group)]
    truncated = [limit for group in groups for limit in group.cut_off.values()]
    limits = Counter(truncated)
    metrics = {
        "rollout/raw_reward": fmean(trajectory.reward for trajectory in trajectories),
        "rollout/truncated_ratio": len(truncated) / len(trajectories),
        **{
            f"rollout/truncated_by/{limit}": count / len(trajectories)
            for limit, count in sorted(limits.items())
            if limit
        },
        **_summary("rollout/response_len", lengths),
        **_spread_metrics(groups),
    }
    solved = [
        trajectory.metrics[success_metric]
        for trajectory in trajectories
        if success_metric in trajectory.metrics
    ]
    if solved:
        metrics[f"rollout/{success_metric}"] = fmean(solved)
    return metrics


def _response_lengths(group: StoredGroup) -> list[int]:
    """Loss tokens of each member, all its rows together."""
    lengths: dict[str, int] = {}
    for row, count in zip(group.trajectories, group.loss_tokens, strict=True):
        lengths[row.trajectory_id] = lengths.get(row.trajectory_id, 0) + count
    return list(lengths.values())


def _spread_metrics(groups: Sequence[StoredGroup]) -> dict[str, float]:
    flat = [group.rewards[0] for group in groups if is_flat(group.rewards)]
    metrics = {
        "rollout/zero_std/ratio": len(flat) / len(groups),
        "rollout/zero_std/all_zero_percentage": sum(reward == 0 for reward in flat) / len(groups),
        "rollout/zero_std/all_one_percentage": sum(reward == 1 for reward in flat) / len(groups),
    }
    for reward in flat:
        name = f"rollout/zero_std/count_{round(reward, 1):g}"
        metrics[name] = metrics.get(name, 0.0) + 1.0
    return metrics


def is_flat(rewards: Sequence[float]) -> bool:
    """True when a group of several has no spread: its advantages are all zero."""
    return len(rewards) > 1 and min(rewards) == max(rewards)


def version_metrics(groups: Sequence[StoredGroup], current: int | None) -> dict[str, float]:
    """Ages of the consumed groups; see `staleness` for the formulas."""
    of_each = [versions_of((item,)) for group in groups for item in group.trajectories]
    known = [versions for versions in of_each if versions is not None]
    metrics = {
        "rollout/weight_version/sample_coverage": len(known) / len(of_each),
    }
    if not known:
        return metrics
    oldest = [float(versions.oldest) for versions in known]
    mixed = sum(versions.delta_gen > 0 for versions in known)
    metrics |= _summary("rollout/weight_version", oldest)
    metrics["rollout/weight_version/mixed_version_ratio"] = mixed / len(known)
    if current is not None:
        metrics |= age_metrics("rollout/staleness", groups, current)
    return metrics


def age_metrics(name: str, groups: Sequence[StoredGroup], current: int) -> dict[str, float]:
    """Mean and max of the four ages over `groups`, weighted by nothing but S_token by tokens."""
    versions = [group.versions for group in groups if group.versions is not None]
    if not versions:
        return {}
    tokens = sum(each.num_tokens for each in versions)
    s_old = [each.s_old(current) for each in versions]
    s_post = [each.s_post(current) for each in versions]
    delta = [each.delta_gen for each in versions]
    weighted = sum(each.s_token(current) * each.num_tokens for each in versions) / tokens
    return {
        f"{name}/s_old_mean": fmean(s_old),
        f"{name}/s_old_max": float(max(s_old)),
        f"{name}/s_post_mean": fmean(s_post),
        f"{name}/delta_gen_mean": fmean(delta),
        f"{name}/token_weighted": weighted,
    }


def queue_metrics(
    consumed: Sequence[StoredGroup], buffered: Sequence[StoredGroup], current: int | None
) -> dict[str, float]:
    """The state of the queue right after the batch was taken out."""
    metrics = {"rollout/fully_async/queue_size": float(len(buffered))}
    for prefix, groups in (("", consumed), ("buffer_", buffered)):
        ages = [
            group.versions.s_old(current)
            for group in groups
            if group.versions is not None and current is not None
        ]
        if ages:
            metrics[f"rollout/fully_async/{prefix}avg_staleness"] = fmean(ages)
            metrics[f"rollout/fully_async/{prefix}max_staleness"] = float(max(ages))
    return metrics


def _summary(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}/mean": fmean(values),
        f"{name}/median": median(values),
        f"{name}/max": max(values),
        f"{name}/min": min(values),
    }
