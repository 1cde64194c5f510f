"""What follows when an episode ends, fails, or is lost with an actor.

A failure is a verdict on the episode (the environment's or the agent's fault) and meets the policy
`actors.rollout.failed`. A loss is nobody's verdict (an actor died, a lease ended) and is sampled
again under every policy, `LOSSES_MAX` times for one trajectory; after that its group is given up.
Neither ever becomes a reward.

Invariant:
    VE-1 (fail loudly): when group after group is given up, and no episode ends well (or, when they
        are lost, none is delivered) in between, the run stops with the last cause instead of going
        round for ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from milepost.actors.effects import Ask, Effect, Fail, Tell, Wake
from milepost.actors.rollout.agents import Slot
from milepost.actors.rollout.flight import Flight
from milepost.actors.rollout.groups import Group, Member, Stage
from milepost.messages.agent import CancelEpisode
from milepost.messages.buffer import GroupAbandoned, GroupResized
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import FinishTrajectory, TrajectorySent
from milepost.messages.shared import VERDICT_MAX, Status
from milepost.messages.supervisor import EventReported

LOSSES_MAX = 6
"""Losses of one trajectory that are sampled again."""
GIVEN_UP_MAX = 8
EPISODE_FAILED = "episode_failed"
LOST = "lost"
SMALLEST_GROUP = 2
BACKOFF_S = 0.125
BACKOFF_S_MAX = 8.0
NO_ROOM_S = 1.0


@dataclass(slots=True)
class Verdicts:
    """Moves members of `flight` on."""

    flight: Flight
    _given_up: Counter[str] = field(default_factory=Counter)
    """Reason -> groups given up since there was proof that things work."""

    # ---- the good way --------------------------------------------------------------------

    def episode_ended(self, ended: EpisodeEnded, now_s: float) -> list[Effect]:
        """An agent's verdict on one attempt."""
        counters = self.flight.counters
        self.flight.pool.end(Slot(ended.trajectory_id, ended.attempt))
        found = self.flight.find(ended.trajectory_id)
        if not found or (found[1].stage, found[1].attempt) != (Stage.RUNNING, ended.attempt):
            # Aborted ones are the echo of our own order to stop.
            counters.late_duplicates += ended.status is not Status.ABORTED
            return []
        group, member = found
        counters.episodes_ended += 1
        match ended.status:
            case Status.COMPLETED | Status.TRUNCATED:
                # `not <=`, since every comparison with NaN is false.
                if ended.reward is None or not abs(ended.reward) <= VERDICT_MAX:
                    said = f"reward of {ended.trajectory_id} is {ended.reward}"
                    cause = f"{said}, no number of at most {VERDICT_MAX:g} in magnitude"
                    return self._failed(group, member, cause, now_s)
                # The environment works, whatever becomes of the row; that is another account.
                del self._given_up[EPISODE_FAILED]
                return [self._finish(group, member, ended, ended.reward, now_s)]
            case Status.FAILED:
                counters.turns_failed += ended.num_turns
                return self._failed(group, member, ended.cause or "no cause given", now_s)
            case Status.ABORTED:
                return self._lost(group, member, ended.cause or "aborted", now_s)

    def _finish(
        self, group: Group, member: Member, ended: EpisodeEnded, reward: float, now_s: float
    ) -> Effect:
        self.flight.move(member, Stage.FINISHING, group.session, now_s)
        key = f"finish/{ended.trajectory_id}/{ended.attempt}"
        self.flight.asks[key] = (group.name, ((member.index, member.attempt),))
        verdict = FinishTrajectory(
            trajectory_id=ended.trajectory_id,
            attempt=ended.attempt,
            status=ended.status,
            reward=reward,
            metrics=ended.metrics,
            generation=ended.generation,
            received=ended.received,
            limit=ended.cause if ended.status is Status.TRUNCATED else "",
        )
        return Ask(group.session, verdict, key)

    def trajectory_sent(self, key: str, sent: TrajectorySent, now_s: float) -> None:
        """The buffer has taken the trajectory of this ask."""
        for _, member in self._asked(key, Stage.FINISHING):
            self.flight.move(member, Stage.DELIVERED, "buffer", now_s)
            self._given_up.clear()
            self.flight.counters.tokens_delivered += sent.num_tokens
            self.flight.counters.tokens_sampled += sent.num_sampled_tokens

    # ---- losses --------------------------------------------------------------------------

    def ask_failed(self, key: str, reason: str, now_s: float) -> list[Effect]:
        """A session did not open or finish what this ask was about."""
        effects: list[Effect] = []
        for group, member in self._asked(key, Stage.OPENING, Stage.FINISHING):
            effects += self._lost(group, member, reason, now_s)
        return effects

    def not_opened(self, key: str, now_s: float) -> list[Effect]:
        """The session has no room at the moment; nothing was lost."""
        effects: list[Effect] = []
        for group, member in self._asked(key, Stage.OPENING):
            self.flight.move(member, Stage.PENDING, "rollout", now_s)
            effects.append(Wake(f"again/{group.trajectory_id(member)}", now_s + NO_ROOM_S))
        return effects

    def _asked(self, key: str, *stages: Stage) -> list[tuple[Group, Member]]:
        name, members = self.flight.asks.pop(key, ("", ()))
        found = [(self.flight.find_member(name, index), attempt) for index, attempt in members]
        return [
            each for each, attempt in found
            if each and each[1].attempt == attempt and each[1].stage in stages
        ]  # fmt: skip

    def trajectory_lost(
        self, trajectory_id: str, attempt: int, cause: str, now_s: float
    ) -> list[Effect]:
        """An actor says that this attempt will not be delivered."""
        found = self.flight.find(trajectory_id)
        if not found or found[1].attempt != attempt:
            return []
        if found[1].stage in (Stage.PENDING, Stage.DELIVERED):
            return []
        return self._lost(*found, cause, now_s)

    def not_taken(self, trajectory_id: str, attempt: int, cause: str, now_s: float) -> list[Effect]:
        """The agent host never took this attempt."""
        self.flight.pool.end(Slot(trajectory_id, attempt))
        return self.trajectory_lost(trajectory_id, attempt, cause, now_s)

    def agent_lost(self, agent: str, cause: str, now_s: float) -> list[Effect]:
        """Every episode on this host is over without a verdict."""
        effects: list[Effect] = []
        for slot in self.flight.pool.end_all(agent):
            effects += self.trajectory_lost(slot.trajectory_id, slot.attempt, cause, now_s)
        return effects

    def session_lost(self, session: str, cause: str, now_s: float) -> list[Effect]:
        """Every token row this session held is gone; what it delivered before is not."""
        effects: list[Effect] = []
        for group in [g for g in self.flight.groups.values() if g.session == session]:
            for member in list(group.members.values()):
                if member.stage not in (Stage.PENDING, Stage.DELIVERED):
                    effects += self._lost(group, member, cause, now_s)
        return effects

    def leases_expired(self, now_s: float) -> list[Effect]:
        """Take episodes from agents that were silent for too long."""
        expired, effects = self.flight.take_expired(now_s)
        for slot, agent in expired:
            self.flight.counters.leases_expired += 1
            cause = f"{agent} was silent about {slot.trajectory_id} beyond its lease"
            cancel = CancelEpisode(trajectory_id=slot.trajectory_id, reason=cause)
            effects.append(Tell(agent, cancel))
            effects += self.trajectory_lost(slot.trajectory_id, slot.attempt, cause, now_s)
        return effects

    def _lost(self, group: Group, member: Member, cause: str, now_s: float) -> list[Effect]:
        self.flight.counters.episodes_lost += 1
        member.losses += 1
        effects = self.flight.cancel(group, member, cause)
        self.flight.move(member, Stage.PENDING, "rollout", now_s)
        if group.abandoned or self.flight.paused:
            return effects
        if member.losses > LOSSES_MAX:
            return effects + self._give_up(group, member, cause, LOST, now_s)
        if not group.is_running:
            group.session = self.flight.pick_session()
        delay_s = min(BACKOFF_S * 2.0**member.losses, BACKOFF_S_MAX)
        return [*effects, Wake(f"again/{group.trajectory_id(member)}", now_s + delay_s)]

    def again_due(self, trajectory_id: str) -> None:
        """The pause after a loss is over."""
        found = self.flight.find(trajectory_id)
        if found and found[1].stage is Stage.PENDING:
            self.flight.pending.append((found[0].name, found[1].index))

    # ---- failures ------------------------------------------------------------------------

    def _failed(self, group: Group, member: Member, cause: str, now_s: float) -> list[Effect]:
        settings, counters = self.flight.settings, self.flight.counters
        counters.episodes_failed += 1
        member.failures += 1
        self.flight.move(member, Stage.PENDING, "rollout", now_s)
        effects = [self.flight.abandon_session(group, member, cause)]
        effects += self._said(group.trajectory_id(member), cause)
        if settings.failed == "retry" and member.failures <= settings.retries_max:
            counters.episodes_retried += 1
            self.flight.pending.append((group.name, member.index))
            return effects
        if settings.failed == "smaller_group" and len(group.members) > SMALLEST_GROUP:
            counters.groups_made_smaller += 1
            del group.members[member.index]
            group.size -= 1
            resized = GroupResized(group_id=group.name, size=group.size, reason=cause)
            return [*effects, Tell("buffer", resized)]
        return effects + self._give_up(group, member, cause, EPISODE_FAILED, now_s)

    def _said(self, trajectory_id: str, cause: str) -> list[Effect]:
        """Tell a person of the 1st, 2nd, 4th, 8th, ... failure: soon, and never a flood."""
        count = self.flight.counters.episodes_failed
        if count & (count - 1):
            return []
        text = f"{trajectory_id} failed: {cause} (failures so far: {count})"
        event = EventReported(source="rollout", kind="episode_failed", text=text)
        return [Tell("supervisor", event)]

    def _give_up(
        self, group: Group, member: Member, cause: str, reason: str, now_s: float
    ) -> list[Effect]:
        self._given_up[reason] += 1
        if self._given_up[reason] >= GIVEN_UP_MAX:
            last = f"{group.trajectory_id(member)}: {cause}"
            return [
                Fail(
                    f"{GIVEN_UP_MAX} groups in a row were given up ({reason}) and nothing went "
                    f"well in between; the last for {last}"
                )
            ]
        return self.abandon(group, reason, now_s)

    def abandon(self, group: Group, reason: str, now_s: float) -> list[Effect]:
        """Give a group up: stop its members, ask the buffer to let it go.

        The group stays in the ledger until the buffer says that it is dropped, or that the order
        came too late and it is stored.
        """
        if group.abandoned:
            return []
        group.abandoned = reason
        self.flight.counters.groups_given_up += 1
        before = self.flight.count(Stage.PENDING)
        effects = self.flight.stop_members(group, group.members.values(), reason, now_s)
        self.flight.counters.siblings_abandoned += self.flight.count(Stage.PENDING) - before
        return [*effects, Tell("buffer", GroupAbandoned(group_id=group.name, reason=reason))]
