"""What a filter sees of a complete group: numbers and names, never tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from milepost.actors.buffer.groups import About, StoredGroup
from milepost.messages.shared import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete group that is about to be stored. Lists have one entry for each member, in order.

    Failed and aborted episodes are in no group: they were retried, left out, or gave it up.
    """

    group_id: str
    prompt_id: str
    label: Any = None
    """Of the prompt; known to filters of the user's own only, as `metadata` is."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[float, ...]
    statuses: tuple[Status, ...]
    """`completed`, or `truncated`: a bound of turns, seconds or tokens ended the episode."""
    num_tokens: tuple[int, ...]
    """Prompt, tool and sampled tokens, over all rows of the member."""
    num_sampled_tokens: tuple[int, ...]
    """Of these, the ones that would be trained."""
    metrics: tuple[Mapping[str, float], ...]
    """What the agent reported (`solved`, `turns`, ...)."""
    oldest_version: int | None = None
    """Of the weights that sampled any token of the group; None: nobody knows."""
    newest_version: int | None = None
    age: int | None = None
    """Versions that were published since the oldest one (S_old)."""

    @classmethod
    def of(cls, group: StoredGroup, about: About, published: int | None) -> Candidate:
        """The candidate for this group, judged while `published` is the newest version."""
        members, versions = group.members, group.versions
        cut_off = group.cut_off
        rows = list(zip(group.trajectories, group.loss_tokens, strict=True))
        whole = {each.trajectory_id: 0 for each in members}
        sampled = dict(whole)
        for row, loss_tokens in rows:
            whole[row.trajectory_id] += row.token_ids.shape[0]
            sampled[row.trajectory_id] += loss_tokens
        age = versions.s_old(published) if versions and published is not None else None
        return cls(
            group_id=group.group_id,
            prompt_id=members[0].prompt_id,
            label=about.label,
            metadata=about.metadata,
            rewards=group.rewards,
            statuses=tuple(
                Status.TRUNCATED if each.trajectory_id in cut_off else each.status
                for each in members
            ),
            num_tokens=tuple(whole.values()),
            num_sampled_tokens=tuple(sampled.values()),
            metrics=tuple(each.metrics for each in members),
            oldest_version=versions.oldest if versions else None,
            newest_version=versions.newest if versions else None,
            age=age,
        )


EXAMPLE: Final = Candidate(
    group_id="an example",
    prompt_id="an example",
    rewards=(0.0, 1.0),
    statuses=(Status.COMPLETED, Status.TRUNCATED),
    num_tokens=(100, 200),
    num_sampled_tokens=(40, 90),
    metrics=({}, {}),
    oldest_version=3,
    newest_version=4,
    age=1,
)
"""What `milepost check` tries filters on."""
