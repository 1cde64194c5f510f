"""One group in the making: its members, and where each of them is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest
from typing import Any, Final

from milepost.actors.rollout.ledger import Place

MISSING_TOLD: Final = 5
"""Members named in every heartbeat."""


class Stage(StrEnum):
    """Where one member of a group is. The budget counts all but `PENDING` and the last two."""

    PENDING = "pending"
    """To be sampled (again) as soon as the budget allows; owned by the rollout actor."""
    OPENING = "opening"
    """Its session is being opened; owned by the session."""
    QUEUED = "queued"
    """Waits for an agent with room; owned by the rollout actor."""
    RUNNING = "running"
    """Owned by an agent."""
    FINISHING = "finishing"
    """Has a verdict; the session assembles and delivers it."""
    DELIVERED = "delivered"
    """Owned by the buffer."""


IN_FLIGHT = frozenset({Stage.OPENING, Stage.QUEUED, Stage.RUNNING})


@dataclass(slots=True)
class Member:
    """One trajectory of a group."""

    index: int
    attempt: int = -1
    """-1 before the first; only what carries the newest attempt counts."""
    stage: Stage = Stage.PENDING
    owner: str = "rollout"
    since_s: float = 0.0
    address: str = ""
    """HTTP base URL of its session; empty when sessions have no such door."""
    failures: int = 0
    """Episodes that failed: the environment's or the agent's fault."""
    losses: int = 0
    """Attempts lost with an actor: nobody's verdict."""


@dataclass(slots=True)
class Group:
    """A group that is not whole in the buffer."""

    name: str
    place: Place
    session: str
    size: int
    """As announced to the buffer."""
    since_s: float
    members: dict[int, Member] = field(default_factory=dict)
    abandoned: str = ""
    """Why it was given up; the buffer's word decides whether it was too late for that."""

    def trajectory_id(self, member: Member) -> str:
        """Name of the member's trajectory, the same in every attempt."""
        return f"{self.name}.{member.index}"

    def missing(self) -> Iterator[Member]:
        """Members not delivered yet."""
        return (item for item in self.members.values() if item.stage is not Stage.DELIVERED)

    @property
    def num_in_flight(self) -> int:
        """Members that count against the budget when it is counted by sample."""
        return sum(member.stage in IN_FLIGHT for member in self.members.values())

    @property
    def is_running(self) -> bool:
        """True while any member was sent out and is not delivered."""
        return any(
            member.stage in IN_FLIGHT or member.stage is Stage.FINISHING
            for member in self.members.values()
        )


def member_of(trajectory_id: str) -> tuple[str, int]:
    """Group name and member index of a trajectory id; `("", -1)` for one we never gave out."""
    group, _, index = trajectory_id.rpartition(".")
    return (group, int(index)) if index.isdecimal() else ("", -1)


def oldest_missing(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """Members that batches wait for longest: who has each, and since when."""
    missing = (
        (member.since_s, group.trajectory_id(member), str(member.stage), member.owner)
        for group in groups
        for member in group.missing()
    )
    names = ("since_s", "trajectory_id", "stage", "owner")
    return [dict(zip(names, each, strict=True)) for each in nsmallest(MISSING_TOLD, missing)]
