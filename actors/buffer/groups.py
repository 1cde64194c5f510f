"""Groups of trajectories: being assembled, and complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from milepost.actors.buffer.staleness import Versions, count_loss_tokens, versions_of
from milepost.messages.buffer import GroupOpened
from milepost.messages.shared import Status
from milepost.messages.trajectory import Trajectory


class About(NamedTuple):
    """What the rollout actor says of the prompt behind a group, where filters want to know."""

    label: Any = None
    metadata: Mapping[str, Any] = MappingProxyType({})


ABOUT_UNKNOWN: Final = About()


@dataclass(slots=True)
class Assembly:
    """A group whose members are still coming. Size 0: its opening has not been heard yet."""

    group_id: str
    since_s: float
    size: int = 0
    about: About = ABOUT_UNKNOWN
    members: dict[str, tuple[Trajectory, ...]] = field(default_factory=dict)
    """The rows of each."""
    num_loss_tokens: int = 0
    """Of all of them."""
    arrived_s: float = 0.0
    """When the last of them came."""

    @property
    def is_complete(self) -> bool:
        """True when every announced member is here."""
        return 0 < self.size <= len(self.members)


@dataclass(slots=True)
class Assembling:
    """Every group whose members are still coming, by name."""

    groups: dict[str, Assembly] = field(default_factory=dict)

    def open(self, opened: GroupOpened, now_s: float) -> Assembly:
        """The group was announced, perhaps after its first members."""
        name = opened.group_id
        assembly = self.groups.setdefault(name, Assembly(name, now_s))
        assembly.size, assembly.about = opened.size, About(opened.label, opened.metadata)
        return assembly

    def add(self, rows: tuple[Trajectory, ...], size: int, now_s: float) -> Assembly | None:
        """One member with all its rows came; None when it is here already.

        Args:
            rows: of the member.
            size: of its group, when nobody announces groups; else 0.
            now_s: now.
        """
        name, member = rows[0].group_id, rows[0].trajectory_id
        assembly = self.groups.setdefault(name, Assembly(name, now_s, size=size))
        if member in assembly.members:
            return None
        assembly.members[member], assembly.arrived_s = rows, now_s
        assembly.num_loss_tokens += sum(map(count_loss_tokens, rows))
        return assembly

    @property
    def num_loss_tokens(self) -> int:
        """Of every member that is here: they die with this process, and are sampled again."""
        return sum(each.num_loss_tokens for each in self.groups.values())

    def announced(self) -> list[str]:
        """Groups whose size is known."""
        return [name for name, each in self.groups.items() if each.size]

    def pop(self, name: str) -> tuple[Trajectory, ...]:
        """Forget the group; the rows that it had."""
        assembly = self.groups.pop(name, None)
        return tuple(chain.from_iterable(assembly.members.values())) if assembly else ()

    def take_complete(self, assemblies: Iterable[Assembly]) -> Iterator[tuple[StoredGroup, About]]:
        """Those of them that are complete now, with what is known of their prompts."""
        for assembly in assemblies:
            if assembly.is_complete:
                del self.groups[assembly.group_id]
                group = complete_group(assembly.group_id, assembly.members.values())
                times = assembly.since_s, assembly.arrived_s
                yield replace(group, sampled_s=times), assembly.about


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A complete group; its trajectories know each other's rewards."""

    group_id: str
    trajectories: tuple[Trajectory, ...]
    """Every row of every member, in order."""
    versions: Versions | None
    num_tokens: int
    """Prompt, tool and sampled tokens of all rows."""
    loss_tokens: tuple[int, ...]
    """For each row, tokens with loss mask 1."""
    sampled_s: tuple[float, float] | None = field(default=None, compare=False)
    """When its first word came and when its last member, monotonic seconds of this incarnation;
    None when a former one heard them."""

    @property
    def members(self) -> tuple[Trajectory, ...]:
        """The first row of each member: a member counts once, however many rows it has."""
        return tuple(trajectory for trajectory in self.trajectories if trajectory.row == 0)

    @property
    def rewards(self) -> tuple[float, ...]:
        """In the order of the members."""
        return tuple(trajectory.reward for trajectory in self.members)

    @property
    def cut_off(self) -> dict[str, str]:
        """Members of which a bound cut a row off, in order -> the bound that did so first."""
        bounds: dict[str, str] = {}
        for row in self.trajectories:
            if row.status is Status.TRUNCATED:
                bounds.setdefault(row.trajectory_id, str(row.metadata.get("limit", "")))
        return bounds

    @property
    def num_loss_tokens(self) -> int:
        """Over all members."""
        return sum(self.loss_tokens)


def complete_group(group_id: str, members: Iterable[tuple[Trajectory, ...]]) -> StoredGroup:
    """Order the members by name and tell each row the rewards of all members."""
    ordered = sorted(members, key=lambda rows: _order(rows[0].trajectory_id))
    rewards = tuple(rows[0].reward for rows in ordered)
    return stored_group(
        group_id,
        tuple(
            msgspec.structs.replace(row, group_rewards=rewards, group_size=len(ordered))
            for rows in ordered
            for row in rows
        ),
    )


def stored_group(group_id: str, trajectories: tuple[Trajectory, ...]) -> StoredGroup:
    """A group whose members know each other's rewards already."""
    return StoredGroup(
        group_id=group_id,
        trajectories=trajectories,
        versions=versions_of(trajectories),
        num_tokens=sum(trajectory.token_ids.shape[0] for trajectory in trajectories),
        loss_tokens=tuple(map(count_loss_tokens, trajectories)),
    )


def _order(trajectory_id: str) -> tuple[str, int, str]:
    head, _, index = trajectory_id.rpartition(".")
    return (head, int(index), "") if index.isdecimal() else (trajectory_id, 0, index)


def oldest_of(assembling: Iterable[Assembly]) -> str:
    """What the oldest group in the making lacks, in names."""
    oldest = min(assembling, key=lambda item: item.since_s, default=None)
    if oldest is None:
        return "none is being assembled"
    have = ", ".join(sorted(oldest.members)) or "none"
    return f"oldest {oldest.group_id} has {have} of {oldest.size}"
