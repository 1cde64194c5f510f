"""Groups on their way to the buffer: opened at a session, sent out to agents, stopped.

Invariants:
    FL-1 (budget): members opening, queued or running never exceed `in_flight_max`.
    FL-2 (one attempt): only the newest attempt of a member changes it; anything older that still
        arrives is counted as a late duplicate.

What happens when an episode ends, fails or is lost is in `verdicts`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from milepost.actors.effects import Ask, Effect, Tell, Wake
from milepost.actors.rollout.agents import AgentPool, Slot
from milepost.actors.rollout.counters import FlightCounters
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.groups import (
    IN_FLIGHT,
    Group,
    Member,
    Stage,
    member_of,
    oldest_missing,
)
from milepost.actors.rollout.ledger import Place, group_name
from milepost.actors.rollout.settings import RolloutSettings
from milepost.configs.seeds import derive_seed
from milepost.messages.agent import CancelEpisode, RunEpisode
from milepost.messages.buffer import GroupAbandoned, GroupOpened
from milepost.messages.session import AbandonTrajectory, OpenSessions, SessionSpec
from milepost.messages.shared import Purpose, SamplingParams

OLDEST_MAX: Final = 16
"""Members that a heartbeat names."""


@dataclass(slots=True)
class Flight:
    """Groups that are not whole in the buffer, and who works on each of their members."""

    settings: RolloutSettings
    order: PromptOrder
    pool: AgentPool
    groups: dict[str, Group] = field(default_factory=dict)
    counters: FlightCounters = field(default_factory=FlightCounters)
    paused: bool = False
    """True while draining: nothing is opened or sent out."""
    pending: deque[tuple[str, int]] = field(default_factory=deque)
    """Group and member index, to be sampled (again) before any new group is opened."""
    asks: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=dict)
    """Key of an open `Ask` -> group, and (member index, attempt) of all it is about."""
    _queue: deque[tuple[str, int, int]] = field(default_factory=deque)
    _num_in_flight: int = 0
    _attempt_first: int = 0
    _attempt_newest: int = 0
    _wake_s: float = math.inf
    _next_session: int = 0

    def __post_init__(self) -> None:
        """Attempts of a former incarnation are never used again."""
        self._attempt_first = self._attempt_newest = self.settings.attempt_first

    def number_on(self) -> None:
        """Groups may be opened again under their old names: with attempts nobody has seen yet."""
        self._attempt_first = self._attempt_newest + 1

    # ---- opening -------------------------------------------------------------------------

    def budget_used(self) -> int:
        """Trajectories that count against `in_flight_max`, by the refill rule."""
        if self.settings.refill == "sample":
            return self._num_in_flight
        running = sum(len(group.members) for group in self.groups.values() if group.is_running)
        return max(running, self._num_in_flight)

    def has_room_for_group(self) -> bool:
        """True when a whole new group fits, and nothing old waits to be sampled again."""
        if self.paused or self.pending:
            return False
        return self.budget_used() + self.settings.group_size <= self.settings.in_flight_max

    def open_group(self, place: Place, now_s: float) -> list[Effect]:
        """Announce a group to the buffer and open the sessions of all its members at once."""
        group = self._add_group(place, now_s)
        for member in group.members.values():
            self._opening(group, member, now_s)
        members = tuple(group.members.values())
        return [self._announce(group), self._ask_open(group, members)]

    def announce_again(self, name: str, now_s: float) -> list[Effect]:
        """The buffer lost what it had of this group: what was delivered is sampled again."""
        group = self.groups[name]
        if group.abandoned:
            return [Tell("buffer", GroupAbandoned(group_id=name, reason=group.abandoned))]
        for member in group.members.values():
            if member.stage in (Stage.DELIVERED, Stage.FINISHING):
                self.move(member, Stage.PENDING, "rollout", now_s)
                self.pending.append((name, member.index))
        return [self._announce(group)]

    def announce_all(self) -> list[Effect]:
        """The buffer missed some word about groups: say all of it again; it knows repeats."""
        return [
            Tell("buffer", GroupAbandoned(group_id=group.name, reason=group.abandoned))
            if group.abandoned
            else self._announce(group)
            for group in self.groups.values()
        ]

    def _add_group(self, place: Place, now_s: float) -> Group:
        name = group_name(place)
        assert name not in self.groups, name
        size = self.settings.group_size
        group = Group(name, place, self.pick_session(), size, now_s)
        group.members = {index: Member(index, since_s=now_s) for index in range(size)}
        self.groups[name] = group
        return group

    def _announce(self, group: Group) -> Effect:
        prompt = self.order.at(group.place.position)
        says_more = self.settings.describes_prompts
        opened = GroupOpened(
            group_id=group.name,
            prompt_id=prompt.prompt_id,
            size=group.size,
            label=prompt.label if says_more else None,
            metadata=prompt.metadata if says_more else {},
        )
        return Tell("buffer", opened)

    def pick_session(self) -> str:
        """Sessions take turns."""
        sessions = self.settings.sessions
        self._next_session = (self._next_session + 1) % len(sessions)
        return sessions[self._next_session]

    def _opening(self, group: Group, member: Member, now_s: float) -> None:
        member.attempt = max(member.attempt + 1, self._attempt_first)
        self._attempt_newest = max(self._attempt_newest, member.attempt)
        self.move(member, Stage.OPENING, group.session, now_s)

    def _ask_open(self, group: Group, members: tuple[Member, ...]) -> Effect:
        first = members[0]
        key = f"open/{group.trajectory_id(first)}/{first.attempt}"
        self.asks[key] = (group.name, tuple((item.index, item.attempt) for item in members))
        prompt_id = self.order.at(group.place.position).prompt_id
        specs = tuple(
            SessionSpec(
                trajectory_id=group.trajectory_id(member),
                group_id=group.name,
                prompt_id=prompt_id,
                attempt=member.attempt,
                group_size=group.size,
                sampling=self._sampling(group, member),
                limits=self.settings.limits,
                purpose=Purpose.TRAIN,
                deliver_to="buffer",
            )
            for member in members
        )
        return Ask(group.session, OpenSessions(sessions=specs), key)

    def _sampling(self, group: Group, member: Member) -> SamplingParams:
        base = self.settings.sampling
        seed = derive_seed(
            self.settings.seed, "sample", group.trajectory_id(member), member.attempt
        )
        return SamplingParams(
            temperature=base.temperature,
            top_p=base.top_p,
            top_k=base.top_k,
            min_p=base.min_p,
            tokens_max=base.tokens_max,
            seed=seed,
        )

    def sessions_opened(self, key: str, addresses: tuple[str, ...]) -> None:
        """The sessions of this ask exist, at these addresses: their members wait for agents."""
        name, opened = self.asks.pop(key, ("", ()))
        urls = addresses or ("",) * len(opened)
        for (index, attempt), address in zip(opened, urls, strict=False):
            found = self.find_member(name, index)
            member = found[1] if found else None
            if member and (member.stage, member.attempt) == (Stage.OPENING, attempt):
                self.move(member, Stage.QUEUED, "rollout", member.since_s)
                member.address = address
                self._queue.append((name, index, attempt))

    # ---- sending out ---------------------------------------------------------------------

    def dispatch(self, now_s: float) -> list[Effect]:
        """Sample pending members again and hand queued ones to agents, as far as there is room."""
        if self.paused:
            return []
        effects: list[Effect] = []
        while self.pending and self._num_in_flight < self.settings.in_flight_max:
            found = self.find_member(*self.pending.popleft())
            if found and found[1].stage is Stage.PENDING and not found[0].abandoned:
                self._opening(*found, now_s)
                effects.append(self._ask_open(found[0], (found[1],)))
        while self._queue and (agent := self.pool.least_loaded()):
            name, index, attempt = self._queue.popleft()
            found = self.find_member(name, index)
            if found and (found[1].stage, found[1].attempt) == (Stage.QUEUED, attempt):
                effects.append(self._send_out(*found, agent, now_s))
        effects += self._arm_lease()
        return effects

    def _send_out(self, group: Group, member: Member, agent: str, now_s: float) -> Effect:
        trajectory_id = group.trajectory_id(member)
        self.pool.start(agent, Slot(trajectory_id, member.attempt), now_s)
        self.move(member, Stage.RUNNING, agent, now_s)
        episode = RunEpisode(
            trajectory_id=trajectory_id,
            group_id=group.name,
            attempt=member.attempt,
            prompt=self.order.at(group.place.position),
            limits=self.settings.limits,
            purpose=Purpose.TRAIN,
            seed=derive_seed(self.settings.seed, "episode", group.name),
            session=group.session,
            report_to="rollout",
            address=member.address,
        )
        return Tell(agent, episode, key=f"run/{trajectory_id}/{member.attempt}")

    # ---- leases --------------------------------------------------------------------------

    def _arm_lease(self) -> list[Effect]:
        next_s = self.pool.next_expiry_s()
        if next_s is None or next_s >= self._wake_s:
            return []
        self._wake_s = next_s
        return [Wake("leases", next_s)]

    def take_expired(self, now_s: float) -> tuple[list[tuple[Slot, str]], list[Effect]]:
        """Episodes taken from agents that were silent for too long; the next look is ordered."""
        self._wake_s = math.inf
        expired = self.pool.end_expired(now_s)
        return expired, self._arm_lease()

    # ---- stopping ------------------------------------------------------------------------

    def stop(self, now_s: float) -> list[Effect]:
        """Send nothing out any more, and stop all that is not being delivered already."""
        self.paused = True
        effects: list[Effect] = []
        for group in self.groups.values():
            effects += self.stop_members(group, group.members.values(), "draining", now_s)
        return effects

    def stop_members(
        self, group: Group, members: Iterable[Member], cause: str, now_s: float
    ) -> list[Effect]:
        """Members of `members` that are opening, queued or running become pending."""
        effects: list[Effect] = []
        for member in members:
            if member.stage in IN_FLIGHT:
                effects += self.cancel(group, member, cause)
                self.move(member, Stage.PENDING, "rollout", now_s)
        return effects

    def close_group(self, name: str, now_s: float) -> list[Effect]:
        """The buffer decided about the group: whatever is still running for it is ghost work."""
        group = self.groups.pop(name)
        return self.stop_members(
            group, group.members.values(), "the group is complete or dropped", now_s
        )

    def cancel(self, group: Group, member: Member, cause: str) -> list[Effect]:
        """Stop this attempt at its agent and its session."""
        trajectory_id = group.trajectory_id(member)
        effects: list[Effect] = []
        if agent := self.pool.agent_of(Slot(trajectory_id, member.attempt)):
            effects.append(Tell(agent, CancelEpisode(trajectory_id=trajectory_id, reason=cause)))
        return [*effects, self.abandon_session(group, member, cause)]

    def abandon_session(self, group: Group, member: Member, cause: str) -> Effect:
        """Stop generating for this attempt and forget its row."""
        return Tell(
            group.session,
            AbandonTrajectory(
                trajectory_id=group.trajectory_id(member), attempt=member.attempt, reason=cause
            ),
        )

    # ---- bookkeeping ---------------------------------------------------------------------

    def find(self, trajectory_id: str) -> tuple[Group, Member] | None:
        """The member of this name, in whatever attempt."""
        name, index = member_of(trajectory_id)
        return self.find_member(name, index)

    def find_member(self, name: str, index: int) -> tuple[Group, Member] | None:
        """The member of this group, if both are still here."""
        group = self.groups.get(name)
        member = group.members.get(index) if group else None
        return (group, member) if group and member else None

    def move(self, member: Member, stage: Stage, owner: str, now_s: float) -> None:
        """Change a member's stage and owner; keeps FL-1's count."""
        self._num_in_flight += (stage in IN_FLIGHT) - (member.stage in IN_FLIGHT)
        member.stage, member.owner, member.since_s = stage, owner, now_s

    def count(self, stage: Stage) -> int:
        """Members in this stage."""
        return sum(
            member.stage is stage
            for group in self.groups.values()
            for member in group.members.values()
        )

    def validate(self) -> None:
        """Assert FL-1 and that the incremental counts are right."""
        counted = sum(group.num_in_flight for group in self.groups.values())
        assert counted == self._num_in_flight, (counted, self._num_in_flight)
        assert self._num_in_flight <= self.settings.in_flight_max, "FL-1 (budget)"
        self.pool.validate()

    def statistics(self) -> dict[str, object]:
        """Budget, stages and counters."""
        return {
            "in_flight": self._num_in_flight,
            "in_flight_max": self.settings.in_flight_max,
            "pending": len(self.pending),
            "queued": len(self._queue),
            "running": len(self.pool),
            "owners": self._owners(),
            "oldest_missing": oldest_missing(self.groups.values()),
            "oldest": self._oldest(),
            **{name: getattr(self.counters, name) for name in FlightCounters.__slots__},
        }

    def _owners(self) -> dict[str, dict[str, float]]:
        """For each owner of members that are not delivered: how many, and since when the oldest."""
        owners: dict[str, dict[str, float]] = {}
        for group in self.groups.values():
            for member in group.missing():
                owner = owners.setdefault(member.owner, {"members": 0, "since_s": member.since_s})
                owner["members"] += 1
                owner["since_s"] = min(owner["since_s"], member.since_s)
        return owners

    def _oldest(self) -> list[dict[str, object]]:
        """The members that are under way for longest, by name: where each is, and since when."""
        found = (
            (member.since_s, group.trajectory_id(member), member)
            for group in self.groups.values()
            for member in group.missing()
        )
        return [
            {
                "trajectory_id": name,
                "stage": member.stage.value,
                "owner": member.owner,
                "since_s": since_s,
            }
            for since_s, name, member in nsmallest(OLDEST_MAX, found, key=lambda one: one[:2])
        ]

    def working_on(self, *, has_credit: bool) -> str:
        """What is out, and what the next group waits for."""
        if self.has_room_for_group():
            waits = "" if has_credit else ", waits for the buffer's credit"
        else:
            waits = ", budget used up"
        oldest = min(
            (
                (member.since_s, group.trajectory_id(member), member.stage, member.owner)
                for group in self.groups.values()
                for member in group.missing()
            ),
            default=None,
        )
        said = f"{self._num_in_flight} trajectories of {len(self.groups)} groups out{waits}"
        if oldest is None:
            return said
        since_s, trajectory_id, stage, owner = oldest
        return f"{said}; oldest {trajectory_id} {stage} at {owner} since {since_s:.1f}"
