"""The session actor: the one authority on tokens.

Owns: the token row and history of every open conversation.
Receives: OpenSessions, ChatTurn, ClientGone, FinishTrajectory, AbandonTrajectory,
    ImportConversations, GeneratedPart, ConversationAsked, VersionPublished, PeerRestarted, Drain.
    Through the HTTP door: DoorTurn, ClientGone, OpenSessions, AbandonTrajectory.
Sends: Generate, AbortRequests and ForgetSessions to engines; TrajectoryFinished or
    TrajectoriesFinished to the destination; TrajectoryLost to who gave the verdict.
Invariants:
    SE-1 (own tokens): a row is what engines were sent and what they sampled, in order; nothing in
        it was ever rendered or tokenized twice.
    SE-2 (all or nothing): a turn that is refused, fails or is superseded changes nothing.
    SE-3 (one turn): a linear session has at most one turn beyond rendering; a newer one stops it.
    SE-4 (one answer): every question gets exactly one answer; a verdict repeated gets the same.
    SE-5 (bounded): at most sessions_max conversations are held.
Starts: when tokenizer and template are loaded and the template is proven to append only.
Dies: with its conversations; whoever asks about one afterwards is told that it is lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from milepost.actors.effects import (
    Answered,
    Effect,
    Event,
    Received,
    Reply,
    Request,
    Taken,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.session import conversation
from milepost.actors.session.desk import Desk
from milepost.actors.session.endings import Endings
from milepost.actors.session.imports import Imports
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.state import Session, Stage
from milepost.actors.session.turns import Turns
from milepost.messages.session import (
    AbandonTrajectory,
    ChatTurn,
    ClientGone,
    ConversationAsked,
    FinishTrajectory,
    GeneratedPart,
    ImportConversations,
    OpenSessions,
    SessionsOpened,
    SessionSpec,
    SessionsRefused,
    TrajectoryAbandoned,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from milepost.actors.session.record import Record

    NewRecord = Callable[[Collection[str]], Record]

DRAIN_KEY = "drain"
OLDEST_TOLD = 32
"""Conversations named in every heartbeat: those that were opened first."""
DRAIN_SHARE = 0.8
"""Of the time a drain has, what turns in flight get before they are stopped."""


class SessionCore:
    """See the module.

    Args:
        desk: text, engines and bounds.
        new_record: makes an empty record, given the roles that may follow a reply.
        sessions_max: conversations held at once.
    """

    def __init__(self, desk: Desk, *, new_record: NewRecord, sessions_max: int) -> None:
        self._desk = desk
        self._new_record = new_record
        self._sessions_max = sessions_max
        self._sessions: dict[str, Session] = {}
        self._turns = Turns(desk)
        self._endings = Endings(desk)
        self._imports = Imports(desk)
        self._draining: Request | None = None
        self._is_draining = False

    def start(self, now_s: float) -> list[Effect]:
        """Nothing happens before somebody asks."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        match event:
            case Received():
                effects = self._received(event, now_s)
            case Answered(key, source, message):
                effects = self._turns.answered(key, source, message, now_s)
            case Unanswered(key, to, reason):
                effects = self._unanswered(key, to, reason, now_s)
            case Taken(key):
                effects = self._taken(key)
            case Woken(key):
                effects = self._woken(key)
            case WorkDone(key, result, error):
                effects = self._worked(key, result, error, now_s)
            case _ as unreachable:
                assert_never(unreachable)
        effects += self._turns.settled(now_s)
        for session in self._endings.ended:
            self._sessions.pop(session.spec.trajectory_id, None)
            effects += self._desk.leave_engine(session, now_s)
        self._endings.ended.clear()
        return effects + self._drained() if self._is_draining else effects

    def _received(self, event: Received, now_s: float) -> list[Effect]:
        message, request = event.message, event.request
        match message:
            case ChatTurn():
                return self._chat(message, _asked(event), now_s)
            case GeneratedPart():
                return self._turns.part(message)
            case ClientGone(trajectory_id=name):
                known = self._sessions.get(name)
                return self._turns.client_gone(known, event.source, message) if known else []
            case OpenSessions():
                return self._open(message, event.source, _asked(event), now_s)
            case ConversationAsked():
                return self._tell_conversation(message, _asked(event))
            case FinishTrajectory():
                return self._finish(message, event.source, request)
            case AbandonTrajectory():
                return self._abandon(message, request, now_s)
            case ImportConversations():
                return self._imports.asked(message, _asked(event))
            case VersionPublished():
                self._desk.published(message.version, message.digest)
                return self._desk.tell_accounts()
            case PeerRestarted():
                return self._peer_died(message.actor, now_s)
            case Drain():
                self._draining, self._is_draining = request, True
                return [Wake(DRAIN_KEY, now_s + DRAIN_SHARE * message.deadline_s)]
            case _:
                told = type(message).__name__
                raise TypeError(f"{self._desk.name} was told {told} by {event.source}")

    # ---- opening and abandoning ----------------------------------------------------------

    def _open(
        self, message: OpenSessions, source: str, request: Request, now_s: float
    ) -> list[Effect]:
        fresh = [spec for spec in message.sessions if self._is_fresh(spec)]
        added = sum(spec.trajectory_id not in self._sessions for spec in fresh)
        effects = self._make_room(added, now_s)
        if len(self._sessions) + added > self._sessions_max:
            told = (
                f"{len(self._sessions)} sessions are open and {added} more are asked for, "
                f"sessions_max is {self._sessions_max}"
            )
            return [*effects, Reply(request, SessionsRefused(reason=told))]
        for spec in fresh:
            older = self._sessions.get(spec.trajectory_id)
            if older is not None:
                told = f"attempt {spec.attempt} took the place of this one"
                effects += self._close(older, told, now_s)
            self._sessions[spec.trajectory_id] = self._made(spec, source, now_s)
            self._desk.counters.sessions_opened += 1
        addresses = self._desk.addresses
        urls = tuple(map(addresses.url, message.sessions)) if addresses else ()
        return [*effects, Reply(request, SessionsOpened(addresses=urls))]

    def find(self, key: str) -> Session | None:
        """The session that an HTTP address names; the door looks, and changes nothing."""
        addresses = self._desk.addresses
        name, attempt = addresses.read(key) if addresses else (key, 0)
        session = self._sessions.get(name)
        if session is None or session.spec.attempt != attempt:
            return None
        # The id of a session of its own is its secret; a name in the run is none.
        return session if session.is_free or name != key else None

    def _is_fresh(self, spec: SessionSpec) -> bool:
        """Whether it is not open already, and no later attempt is."""
        known = self._sessions.get(spec.trajectory_id)
        return known is None or known.spec.attempt < spec.attempt

    def _made(self, spec: SessionSpec, source: str, now_s: float) -> Session:
        family = self._desk.renderer.family
        stops = tuple(dict.fromkeys((*spec.sampling.stop_token_ids, *family.stop_token_ids)))
        spec = replace(spec, sampling=replace(spec.sampling, stop_token_ids=stops))
        return Session(spec, self._new_record(family.appended_roles), source, now_s)

    def _make_room(self, added: int, now_s: float) -> list[Effect]:
        """Close sessions that nobody has used for longer than an episode may last."""
        excess = len(self._sessions) + added - self._sessions_max
        if excess <= 0:
            return []
        stale = [
            session
            for session in self._sessions.values()
            if now_s - session.active_s > session.spec.limits.seconds_max
            and not session.flights
            and session.ending is None
        ]
        effects: list[Effect] = []
        for session in stale[:excess]:
            self._desk.counters.sessions_evicted += 1
            effects += self._close(session, "unused for longer than its episode may last", now_s)
        return effects

    def _abandon(
        self, message: AbandonTrajectory, request: Request | None, now_s: float
    ) -> list[Effect]:
        session = self._sessions.get(message.trajectory_id)
        effects: list[Effect] = []
        if session is not None and session.spec.attempt <= message.attempt:
            self._desk.counters.sessions_abandoned += 1
            effects = self._close(session, message.reason, now_s)
        if request is not None:
            answer = TrajectoryAbandoned(trajectory_id=message.trajectory_id)
            effects.append(Reply(request, answer))
        return effects

    def _close(self, session: Session, reason: str, now_s: float) -> list[Effect]:
        """Forget a session: what is in flight stops, what waits is answered."""
        effects = self._turns.stop(session, reason)
        effects += self._endings.drop(session, reason)
        self._desk.counters.account("abandoned", session.record.num_sampled_tokens)
        del self._sessions[session.spec.trajectory_id]
        return effects + self._desk.leave_engine(session, now_s)

    # ---- turns and verdicts --------------------------------------------------------------

    def _chat(self, turn: ChatTurn, request: Request, now_s: float) -> list[Effect]:
        session = self._sessions.get(turn.trajectory_id)
        if session is None:
            told = f"{self._desk.name} has no session {turn.trajectory_id}: it ended or was lost"
            return self._turns.refuse(request, TurnRefused("unknown_session", told))
        if session.ending is not None or self._is_draining:
            told = "the run drains" if self._is_draining else "the session has its verdict"
            return self._turns.refuse(request, TurnRefused("closed", told))
        return self._turns.asked(session, turn, request, now_s)

    def _tell_conversation(self, asked: ConversationAsked, request: Request) -> list[Effect]:
        session = self._sessions.get(asked.trajectory_id)
        if session is None or session.spec.attempt != asked.attempt:
            told = f"{self._desk.name} has no session {asked.trajectory_id} of this attempt"
            return [Reply(request, TurnRefused("unknown_session", told).message())]
        return [Reply(request, conversation.told(session, asked))]

    def _finish(
        self, verdict: FinishTrajectory, source: str, request: Request | None
    ) -> list[Effect]:
        session = self._sessions.get(verdict.trajectory_id)
        effects: list[Effect] = []
        if session is not None and session.spec.attempt == verdict.attempt:
            effects = self._turns.stop(session, "the session has its verdict")
        return effects + self._endings.finish(session, verdict, source, request)

    # ---- the rest of the events ----------------------------------------------------------

    def _unanswered(self, key: str, to: str, reason: str, now_s: float) -> list[Effect]:
        match key.partition("/")[0]:
            case "generate":
                return self._turns.unanswered(key, to, reason, now_s)
            case "deliver":
                return self._endings.undelivered(key, to, reason, now_s)
            case "rows":
                return self._imports.undelivered(key, to, reason)
            case "accounts":
                self._desk.accounts_missed(key)
                return []
            case _:
                # An engine that could not be told to stop or to forget is dead.
                return []

    def _taken(self, key: str) -> list[Effect]:
        if key.startswith("rows/"):
            return self._imports.taken(key)
        if key.startswith("accounts/"):
            self._desk.accounts_taken(key)
            return []
        return self._endings.taken(key)

    def _woken(self, key: str) -> list[Effect]:
        match key.partition("/")[0]:
            case "again":
                return self._turns.woken(key)
            case "deliver":
                return self._endings.woken(key)
            case "forget":
                return self._desk.forget()
            case _:
                assert key == DRAIN_KEY, f"woken for {key}"
                return self._stop_all("the run drains")

    def _worked(self, key: str, result: object, error: str, now_s: float) -> list[Effect]:
        match key.partition("/")[0]:
            case "import":
                return self._imports.worked(key, result, error)
            case "assemble":
                return self._endings.worked(key, result, error)
            case _:
                return self._turns.worked(key, result, error, now_s)

    def _peer_died(self, actor: str, now_s: float) -> list[Effect]:
        """An engine is gone, and with it the prefixes; or an agent, and nobody hears its turns.

        The supervisor says so at the death, some time before the next incarnation can serve.
        """
        if actor in self._desk.pool.loads:
            self._desk.pool.failed_with(actor, "it died", now_s)
        effects: list[Effect] = []
        for session in self._sessions.values():
            effects += self._turns.stop(session, f"{actor} died", source=actor)
        return effects

    def _stop_all(self, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        for session in self._sessions.values():
            effects += self._turns.stop(session, reason)
        return effects

    def _drained(self) -> list[Effect]:
        busy = len(self._endings) or len(self._imports) or self._in_flight()
        if busy or self._draining is None:
            return []
        request, self._draining = self._draining, None
        return [*self._desk.tell_accounts(), Reply(request, Drained(actor=self._desk.name))]

    def _in_flight(self) -> Counter[Stage]:
        sessions = self._sessions.values()
        return Counter(one.stage for session in sessions for one in session.flights.values())

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Every invariant of the state; costs every row."""
        assert len(self._sessions) <= self._sessions_max, "SE-5 (bounded)"
        loads = Counter(session.engine for session in self._sessions.values() if session.engine)
        assert loads == Counter(self._desk.pool.loads), "engine loads and sessions differ"
        for name, session in self._sessions.items():
            assert name == session.spec.trajectory_id, f"session {name} is filed wrongly"
            session.validate()

    def statistics(self) -> dict[str, object]:
        """Sessions, turns by stage, engines, and everything counted since the start."""
        return {
            "sessions": len(self._sessions),
            "sessions_max": self._sessions_max,
            "turns_in_flight": {stage.value: n for stage, n in self._in_flight().items()},
            "verdicts_under_way": len(self._endings),
            "imports_under_way": len(self._imports),
            "engine_sessions": self._desk.pool.loads,
            "engines_failed": self._desk.pool.failed,
            **asdict(self._desk.counters),
            "oldest": [each.place() for each in islice(self._sessions.values(), OLDEST_TOLD)],
            "accounts_untold": self._desk.accounts_untold,
            "tokens_at_risk": sum(each.tokens_at_risk for each in self._sessions.values()),
        }

    def working_on(self) -> str:
        """Turns by stage, with the oldest of them by name."""
        flights = [(one, s) for s in self._sessions.values() for one in s.flights.values()]
        if not flights:
            busy = len(self._endings) + len(self._imports)
            return f"delivers {busy} trajectories" if busy else "waits for turns"
        flight, session = min(flights, key=lambda pair: pair[0].since_s)
        stages = ", ".join(f"{n} {stage.value}" for stage, n in self._in_flight().items())
        where = f" on {session.engine}" if session.engine else ""
        return (
            f"{len(flights)} turns ({stages}); oldest is turn {flight.plan.base_turns + 1} of "
            f"{session.spec.trajectory_id}{where}, since {flight.since_s:.1f}"
        )


def _asked(event: Received) -> Request:
    """The handle of a message that makes no sense as a statement."""
    if event.request is None:
        told = type(event.message).__name__
        raise TypeError(f"{event.source} told {told} without waiting for an answer: ask it")
    return event.request
