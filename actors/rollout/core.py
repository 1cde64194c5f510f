"""The rollout actor: sends prompts out, and knows at any instant where each of them is.

Owns: the prompt cursor, the ledger, the budget of trajectories in flight.
Receives: credits and fates of groups from the buffer, verdicts from agents, losses from sessions.
Sends: sessions to open and trajectories to finish, episodes to agents, groups opened to the buffer.
Invariants:
    RO-1 (balance): issued = trained + dropped (by reason) + in flight (by owner), always, and
        across restarts; nothing is trained twice.
    RO-2 (credit): groups that hold a credit never exceed what the buffer granted, so a complete
        group always finds room there and harvesting never waits.
    RO-3 (budget): see `flight`.
Starts: when the buffer said what it holds, the engines serve a version, and the first evaluation
    is over (each if the topology has such an actor).
Dies: on a broken invariant, a journal that cannot be written, or episodes that only fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from milepost.actors.effects import (
    Answered,
    Effect,
    Event,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.rollout.agents import AgentPool
from milepost.actors.rollout.bookkeeping import Bookkeeping
from milepost.actors.rollout.flight import Flight
from milepost.actors.rollout.groups import Stage
from milepost.actors.rollout.records import Dropped, Issued, Lost, Recalled, Stored
from milepost.actors.rollout.verdicts import Verdicts
from milepost.messages.buffer import CheckpointSaved, IssueEnded
from milepost.messages.rollout import (
    AgentLeft,
    AgentReady,
    CreditsGranted,
    EpisodeEnded,
    EpisodesAlive,
    EvaluationFinished,
    GroupDropped,
    GroupsStored,
    GroupStored,
    GroupsTrained,
    LedgerReport,
    LedgerRequested,
    StoreRecovered,
    TrajectoryLost,
)
from milepost.messages.session import SessionsOpened, SessionsRefused, TrajectorySent
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

if TYPE_CHECKING:
    from milepost.actors.rollout.cursor import PromptOrder
    from milepost.actors.rollout.ledger import Ledger
    from milepost.actors.rollout.settings import RolloutSettings
    from milepost.messages.shared import Message

ANNOUNCE_AGAIN_S = 1.0
"""After a word that the buffer did not take."""


@dataclass(slots=True)
class _Draining:
    request: Request
    until_s: float


@dataclass(slots=True)
class Rollout:
    """See the module."""

    settings: RolloutSettings
    order: PromptOrder
    book: Bookkeeping
    flight: Flight
    verdicts: Verdicts
    waits_for: set[str]
    _draining: _Draining | None = None
    _drained: bool = False

    @classmethod
    def of(cls, settings: RolloutSettings, order: PromptOrder, ledger: Ledger) -> Rollout:
        """A rollout actor that goes on from `ledger`."""
        pool = AgentPool(
            dict(settings.agents),
            started_s=settings.limits.seconds_max + settings.lease_s,
            silence_s=settings.lease_s,
        )
        flight = Flight(settings, order, pool)
        waits_for = set(settings.waits_for)
        return cls(settings, order, Bookkeeping(ledger), flight, Verdicts(flight), waits_for)

    def start(self, now_s: float) -> list[Effect]:
        """Nothing goes out before the buffer said what it holds."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door. Records of the ledger go to the journal in the order they were made."""
        effects = self._decide(event, now_s)
        effects += self._go_on(now_s)
        return [*self.book.flush(), *effects]

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case Answered(key, _, message):
                return self._answered(key, message, now_s)
            case Unanswered(key, no_room=True) if key.startswith("open/"):
                return self.verdicts.not_opened(key, now_s)
            case Unanswered(key, to, reason):
                return self._unanswered(key, to, reason, now_s)
            case Woken(key):
                return self._woken(key, now_s)
            case WorkDone():
                return self.book.written(event)
            case Taken():
                return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        flight = self.flight
        match message:
            case CreditsGranted():
                self.book.grant(message.samples_total // self.settings.group_size)
            case EpisodeEnded():
                return self.verdicts.episode_ended(message, now_s)
            case EpisodesAlive():
                for trajectory_id in message.trajectory_ids:
                    flight.pool.renew(trajectory_id, now_s)
            case TrajectoryLost():
                return self.verdicts.trajectory_lost(
                    message.trajectory_id, message.attempt, message.cause, now_s
                )
            case GroupStored() | GroupsStored() | GroupDropped() | GroupsTrained():
                return self._fate(message, now_s)
            case StoreRecovered():
                return self._store_recovered(message, now_s)
            case AgentReady():
                flight.pool.set_capacity(message.agent, message.episodes_max)
            case AgentLeft():
                flight.pool.set_capacity(message.agent, 0)
                return self.verdicts.agent_lost(message.agent, message.reason, now_s)
            case VersionPublished():
                self.waits_for.discard("version")
            case EvaluationFinished():
                self.waits_for.discard("evaluation")
            case CheckpointSaved():
                self.book.checkpointed(message.step)
            case PeerRestarted():
                return self._peer_restarted(message.actor, now_s)
            case LedgerRequested():
                assert request is not None
                return [Reply(request, self.report(now_s))]
            case Drain():
                assert request is not None
                return self._drain(message, request, now_s)
            case _:
                raise TypeError(f"rollout was told {type(message).__name__} by {source}")
        return []

    # ---- issuing -------------------------------------------------------------------------

    def _go_on(self, now_s: float) -> list[Effect]:
        if self._draining:
            return self._reply_drained(now_s)
        if self.waits_for:
            return []
        effects = self.flight.dispatch(now_s)
        issued = False
        while self.book.has_credit and self.flight.has_room_for_group():
            place = self.book.ledger.next_place()
            opened = self.flight.open_group(place, now_s)
            group = next(reversed(self.flight.groups))
            self.book.record(Issued(group=group, position=place.position, retry=place.retry))
            effects += opened
            issued = True
        return effects + (self.flight.dispatch(now_s) if issued else [])

    # ---- what the buffer says ------------------------------------------------------------

    def _fate(
        self, message: GroupStored | GroupsStored | GroupDropped | GroupsTrained, now_s: float
    ) -> list[Effect]:
        ledger = self.book.ledger
        match message:
            case GroupStored() | GroupsStored():
                names = (
                    (message.group_id,) if isinstance(message, GroupStored) else message.group_ids
                )
                if stored := tuple(name for name in names if name in ledger.open):
                    self.book.record(Stored(groups=stored))
                return self._close(stored, now_s)
            case GroupDropped():
                name = message.group_id
                if name not in ledger.open and name not in ledger.stored:
                    return []
                self.book.record(
                    Dropped(
                        group=name,
                        reason=message.reason,
                        again=message.retry,
                        consumed=message.consumed,
                    )
                )
                return self._close((name,), now_s)
            case GroupsTrained():
                known = tuple(
                    name
                    for name in message.group_ids
                    if name in ledger.stored or name in ledger.open
                )
                self.book.trained(known, message.version)
                return self._close(known, now_s)

    def _close(self, names: tuple[str, ...], now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in names:
            if name in self.flight.groups:
                effects += self.flight.close_group(name, now_s)
        return effects

    def _store_recovered(self, message: StoreRecovered, now_s: float) -> list[Effect]:
        """Settle the ledger with what the buffer holds; the rest goes out again, as credits allow.

        After a resume at a lower version there may be fewer credits than groups were open.
        """
        self.waits_for.discard("store")
        effects = self.book.adopt(message)
        ledger = self.book.ledger
        for name, step in message.trained.items():
            known = name in ledger.open or name in ledger.stored
            self.book.trained((name,) if known else (), step)
        if stored := tuple(name for name in message.stored if name in ledger.open):
            self.book.record(Stored(groups=stored))
        held = set(message.stored)
        if lost := tuple(name for name in ledger.stored if name not in held):
            self.book.record(Lost(groups=lost))
        effects += self._close(tuple(n for n in self.flight.groups if n not in ledger.open), now_s)
        self.book.settle(message.groups_spent)
        if nowhere := tuple(name for name in ledger.open if name not in self.flight.groups):
            self.book.record(Recalled(groups=nowhere))
            self.flight.number_on()
        for name in ledger.open:
            effects += self.flight.announce_again(name, now_s)
        return effects

    # ---- answers, timers, peers ----------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        match message:
            case SessionsOpened():
                self.flight.sessions_opened(key, message.addresses)
                return []
            case TrajectorySent():
                self.verdicts.trajectory_sent(key, message, now_s)
                return []
            case SessionsRefused():
                return self.verdicts.not_opened(key, now_s)
            case TrajectoryLost():
                return self.verdicts.ask_failed(key, message.cause, now_s)
            case _:
                reason = f"the session answered {type(message).__name__}"
                return self.verdicts.ask_failed(key, reason, now_s)

    def _unanswered(self, key: str, to: str, reason: str, now_s: float) -> list[Effect]:
        kind, _, rest = key.partition("/")
        if to == "buffer":
            # Many words fail at once when it is gone: all is said again once for all of them.
            return [Wake("announce", now_s + ANNOUNCE_AGAIN_S)]
        if kind == "run":
            trajectory_id, _, attempt = rest.rpartition("/")
            cause = f"{to} did not take the episode: {reason}"
            return self.verdicts.not_taken(trajectory_id, int(attempt), cause, now_s)
        return self.verdicts.ask_failed(key, reason, now_s)

    def _woken(self, key: str, now_s: float) -> list[Effect]:
        kind, _, rest = key.partition("/")
        match kind:
            case "announce":
                return self.flight.announce_all() + self._issue_ended()
            case "leases":
                return self.verdicts.leases_expired(now_s)
            case "again":
                self.verdicts.again_due(rest)
        return []

    def _peer_restarted(self, actor: str, now_s: float) -> list[Effect]:
        cause = f"{actor} restarted"
        if actor in self.flight.pool.capacity:
            return self.verdicts.agent_lost(actor, cause, now_s)
        if actor in self.settings.sessions:
            return self.verdicts.session_lost(actor, cause, now_s)
        return []

    # ---- draining ------------------------------------------------------------------------

    def _drain(self, order: Drain, request: Request, now_s: float) -> list[Effect]:
        """Stop sending out and stop what runs; every group stays in the ledger as in flight.

        Verdicts that are being delivered are waited for, so that no finished work is lost.
        """
        self._draining = _Draining(request, now_s + order.deadline_s)
        wake = Wake("drain", self._draining.until_s)
        return [*self._issue_ended(), *self.flight.stop(now_s), wake]

    def _issue_ended(self) -> list[Effect]:
        if self._draining is None:
            return []
        return [Tell("buffer", IssueEnded(reason="the rollout actor drains", draining=True))]

    def _reply_drained(self, now_s: float) -> list[Effect]:
        assert self._draining is not None
        if self._drained:
            return []
        finishing = self.flight.count(Stage.FINISHING)
        if now_s < self._draining.until_s and (finishing or len(self.flight.pool)):
            return []
        self._drained = True
        return [*self.book.sync(), Reply(self._draining.request, Drained(actor="rollout"))]

    # ---- what others see -----------------------------------------------------------------

    def report(self, now_s: float) -> LedgerReport:
        """The balance, with the name, owner and age of everything in flight."""
        return self.book.report(self.flight.groups, now_s)

    def validate(self) -> None:
        """Assert RO-1 to RO-3."""
        self.book.validate()
        self.flight.validate()
        if "store" not in self.waits_for:
            assert self.flight.groups.keys() == self.book.ledger.open.keys()

    def statistics(self) -> dict[str, object]:
        """The ledger, the budget and the waste counters."""
        return {**self.book.statistics(), **self.flight.statistics()}

    def working_on(self) -> str:
        """What it waits for, in names."""
        if self._draining:
            return f"drains, {len(self.flight.pool)} episodes still running"
        if self.waits_for:
            return f"waits for {', '.join(sorted(self.waits_for))} before the first prompt"
        return self.flight.working_on(has_credit=self.book.has_credit)
