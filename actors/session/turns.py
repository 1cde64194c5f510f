"""A turn from its request to its reply: plan, render, generate, read, commit.

Nothing of a session changes before the commit, which happens in one step when everything has
succeeded. A newer request on a linear session takes the place of an older one still in flight when
it goes to an engine. Until then it may be refused, and the older one is not committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import Ask, Effect, Reply, Request, Tell, Wake
from milepost.actors.session.families import ParsedReply
from milepost.actors.session.generation import (
    EngineFault,
    chat_reply,
    num_sampled,
    read_generated,
    reply_message,
)
from milepost.actors.session.planning import measure, planned
from milepost.actors.session.record import Turn
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.reply import SampledReply
from milepost.actors.session.state import NO_SEAM, Flight, Session, Stage
from milepost.actors.session.streaming import stream_of, tell_part
from milepost.actors.session.text.rendering import Piece
from milepost.actors.session.work import ReadReply, Refusal, RenderText, read_reply, render
from milepost.messages.engine import AbortRequests, Generate, Generated, GenerateRefused
from milepost.messages.session import ChatTurn, ClientGone, GeneratedPart
from milepost.messages.shared import FinishReason, Message

if TYPE_CHECKING:
    from milepost.actors.session.desk import Desk

BACKOFF_S = 0.05
BACKOFF_S_MAX = 2.0


@dataclass(slots=True)
class Turns:
    """All turns in flight of one session actor."""

    desk: Desk
    _works: dict[str, tuple[Session, Flight]] = field(default_factory=dict)
    """Turns whose text a thread works on, by key."""
    _generating: dict[str, tuple[Session, Flight]] = field(default_factory=dict)
    """Open questions to engines, by key; those of turns that were stopped, too."""
    _waiting: dict[str, tuple[Session, Flight]] = field(default_factory=dict)
    """Turns that try again after a pause, by the key of its end."""
    _contested: list[tuple[Session, Flight, object]] = field(default_factory=list)
    """Turns whose text a thread has worked on, with its result, while newer ones are rendered."""

    # ---- asked ---------------------------------------------------------------------------

    def asked(
        self, session: Session, turn: ChatTurn, request: Request, now_s: float
    ) -> list[Effect]:
        """A client wants the next reply."""
        try:
            flight = planned(self.desk, session, turn, request, now_s)
        except TurnRefused as refused:
            return [self._refusal(session, request, refused)]
        session.asked(flight, now_s)
        return self._render(session, flight, now_s)

    def _refusal(self, session: Session | None, request: Request, refused: TurnRefused) -> Effect:
        counts = self.desk.counters.refused
        counts[refused.kind] = counts.get(refused.kind, 0) + 1
        if session is not None:
            session.refused(refused)
        return Reply(request, refused.message())

    def refuse(self, request: Request, refused: TurnRefused) -> list[Effect]:
        """Refuse a turn of no session."""
        return [self._refusal(None, request, refused)]

    def stop(self, session: Session, reason: str, *, source: str = "") -> list[Effect]:
        """Stop the turns in flight, or those that `source` asked for; the askers are told why."""
        effects: list[Effect] = []
        for flight in list(session.flights.values()):
            if source in ("", flight.request.source):
                effects += self._stop(session, flight, TurnRefused("closed", reason))
        return effects

    def _stop(self, session: Session, flight: Flight, refused: TurnRefused) -> list[Effect]:
        effects = self._fail(session, flight, refused)
        if flight.stage is Stage.GENERATE:
            effects.append(Tell(flight.engine, AbortRequests(request_ids=(flight.request_id,))))
        return effects

    def _fail(self, session: Session, flight: Flight, refused: TurnRefused) -> list[Effect]:
        del session.flights[flight.epoch]
        if flight.reply is not None:
            self.desk.counters.account("stopped", len(flight.reply.token_ids))
        if flight.tries:
            self.desk.pool.turn_ended(session.spec.trajectory_id)
        return [self._refusal(session, flight.request, refused)]

    # ---- render --------------------------------------------------------------------------

    def _render(self, session: Session, flight: Flight, now_s: float) -> list[Effect]:
        plan, renderer = flight.plan, self.desk.renderer
        if plan.base_turns:
            calls = session.record.last_calls(plan)
            flight.text = renderer.delta(plan.appended, calls, plan.tools)
            flight.seam = renderer.family.seam(session.record.last_token(plan))
        else:
            flight.text = renderer.first(plan.appended, plan.tools)
            flight.seam = NO_SEAM
        if (piece := renderer.recall(flight.text)) is not None:
            return self._rendered(session, flight, piece, now_s)
        if self.desk.renders_now(flight.text, now_s):
            return self._rendered(session, flight, render(flight.text, renderer), now_s)
        work = RenderText(self.desk.key("render"), flight.text)
        self._works[work.key] = session, flight
        return [work]

    def _rendered(
        self, session: Session, flight: Flight, result: object, now_s: float
    ) -> list[Effect]:
        if isinstance(result, Refusal):
            return self._fail(session, flight, TurnRefused("bad_request", result.reason))
        assert isinstance(result, Piece)
        flight.piece = result
        self.desk.renderer.remember(flight.text, result)
        try:
            measure(self.desk, session, flight)
        except TurnRefused as refused:
            return self._fail(session, flight, refused)
        effects: list[Effect] = []
        for older in session.superseded_by(flight):
            told = "a newer request of this session took its place"
            effects += self._stop(session, older, TurnRefused("closed", told))
        pool = self.desk.pool
        if not session.engine:
            self.desk.enter_engine(session, now_s)
        elif (reason := pool.failed.get(session.engine)) is not None:
            self._move(session, f"{session.engine} failed: {reason}", now_s)
        return effects + self._generate(session, flight)

    # ---- generate ------------------------------------------------------------------------

    def _generate(self, session: Session, flight: Flight) -> list[Effect]:
        assert flight.piece is not None
        assert flight.sampling is not None
        assert session.engine, "a turn needs an engine"
        spec = session.spec
        flight.stage = Stage.GENERATE
        flight.tries += 1
        flight.request_id = f"{spec.trajectory_id}/{spec.attempt}/{flight.epoch}/{flight.tries}"
        key = f"generate/{flight.request_id}"
        self._generating[key] = session, flight
        prompt = session.record.prompt(flight.plan, flight.seam, flight.piece)
        assert len(prompt) == flight.prompt_tokens, f"{len(prompt)} of {flight.prompt_tokens}"
        generate = Generate(
            request_id=flight.request_id,
            session_id=spec.trajectory_id,
            token_ids=to_bulk(prompt, "int32"),
            sampling=flight.sampling,
            version_min=self.desk.version if spec.version_min is None else spec.version_min,
            stream=bool(flight.stream_name),
            rank=session.rank,
            routes_start=flight.routes.start if flight.routes else None,
            adapter=flight.adapter,
        )
        # No bound of ours may be shorter than the episode's: it would cut the longest replies.
        deadline_s = spec.limits.seconds_max
        flight.engine = session.engine
        return [Ask(session.engine, generate, key, deadline_s)]

    def answered(self, key: str, source: str, message: Message, now_s: float) -> list[Effect]:
        """An engine answered."""
        session, flight = self._generating.pop(key)
        if isinstance(message, Generated):
            self.desk.pool.generated(source)
        if not session.has(flight):
            # The turn was stopped meanwhile.
            if isinstance(message, Generated):
                self.desk.counters.account("stopped", num_sampled(message))
            return []
        match message:
            case Generated(finish_reason=FinishReason.ABORT):
                self.desk.counters.account("aborted", num_sampled(message))
                return self._again(session, flight, f"{source} aborted the request", now_s)
            case Generated():
                return self._generated(session, flight, message, source, now_s)
            case GenerateRefused(retry=True):
                return self._again(session, flight, f"{source}: {message.reason}", now_s)
            case GenerateRefused():
                reason = f"{source} refused the request: {message.reason}"
                return self._fail(session, flight, TurnRefused("engine", reason))
            case _:
                raise TypeError(f"{source} answered a generation with {type(message).__name__}")

    def unanswered(self, key: str, to: str, reason: str, now_s: float) -> list[Effect]:
        """An engine is dead, or did not answer."""
        session, flight = self._generating.pop(key)
        self.desk.pool.failed_with(to, reason, now_s)
        if not session.has(flight):
            return []
        told = f"{to} did not answer: {reason}"
        return self._again(session, flight, told, now_s, has_failed=True)

    def _again(
        self,
        session: Session,
        flight: Flight,
        reason: str,
        now_s: float,
        *,
        has_failed: bool = False,
    ) -> list[Effect]:
        """Try once more, on another engine if this one has failed; nothing was committed."""
        if flight.failing_since_s is None:
            flight.failing_since_s = now_s
        failing_s = now_s - flight.failing_since_s
        if failing_s >= self.desk.patience_s:
            told = f"{reason}; {flight.tries} tries in {failing_s:.1f} s"
            return self._fail(session, flight, TurnRefused("engine", told))
        # Once round all of them at once; after that they are all dead, and asking on is no help.
        is_first_round = flight.tries < self.desk.pool.num_serving(session.spec.purpose)
        # Another turn of the session may have moved it already.
        has_moved = has_failed and (
            session.engine != flight.engine or self._move(session, reason, now_s)
        )
        if has_moved and is_first_round:
            return self._generate(session, flight)
        flight.stage = Stage.WAIT
        pause_s = min(BACKOFF_S * 2.0 ** (flight.tries - 1), BACKOFF_S_MAX)
        key = f"again/{flight.request_id}"
        self._waiting[key] = session, flight
        return [Wake(key, now_s + pause_s)]

    def _move(self, session: Session, reason: str, now_s: float) -> bool:
        """Leave an engine that failed; False when there is no other."""
        old, pool = session.engine, self.desk.pool
        pool.release(old)
        self.desk.enter_engine(session, now_s, avoid=old)
        if session.engine == old:
            return False
        session.moves.append(reason)
        self.desk.counters.engine_moves += 1
        return True

    def woken(self, key: str) -> list[Effect]:
        """The pause before another try is over."""
        session, flight = self._waiting.pop(key)
        return self._generate(session, flight) if session.has(flight) else []

    # ---- streaming -----------------------------------------------------------------------

    def part(self, message: GeneratedPart) -> list[Effect]:
        """An engine has sampled more of a reply."""
        session, flight = self._generating.get(f"generate/{message.request_id}", (None, None))
        if session is None or flight is None or not session.has(flight):
            return []
        try:
            token_ids = from_bulk(message.token_ids).tolist()
            deltas = stream_of(flight, self.desk.renderer).feed(message.start, token_ids)
        except TurnRefused as refused:
            return self._stop(session, flight, refused)
        return tell_part(flight, deltas)

    def client_gone(self, session: Session, source: str, gone: ClientGone) -> list[Effect]:
        """Nobody waits for this turn any more: sampling on would be waste."""
        for flight in session.flights.values():
            if (flight.request.source, flight.number) == (source, gone.number):
                self.desk.counters.clients_gone += 1
                return self._stop(session, flight, TurnRefused("closed", gone.reason))
        return []

    # ---- read and commit -----------------------------------------------------------------

    def _generated(
        self, session: Session, flight: Flight, message: Generated, source: str, now_s: float
    ) -> list[Effect]:
        assert flight.piece is not None
        assert flight.sampling is not None
        try:
            reply = read_generated(
                message,
                engine=source,
                tokens_max=flight.sampling.tokens_max,
                stop_token_ids=flight.sampling.stop_token_ids,
                digests=self.desk.digests,
                routes=flight.routes,
                adapter=flight.adapter,
            )
        except EngineFault as fault:
            # Whatever it says of them, they were sampled.
            self.desk.counters.account("stopped", num_sampled(message))
            return self._fail(session, flight, TurnRefused("engine", str(fault)))
        flight.reply, flight.cached_tokens = reply, message.cached_tokens
        flight.stage = Stage.READ
        plan, tail = flight.plan, flight.piece.tail
        # Until a newer request is refused or goes to an engine, nothing can be committed.
        if not session.is_contested(flight) and self.desk.reads_now(reply):
            parsed = read_reply(reply, tail, flight.call_number, plan.tools, self.desk.renderer)
            return self._commit(session, flight, parsed, now_s)
        work = ReadReply(self.desk.key("read"), reply, tail, flight.call_number, plan.tools)
        self._works[work.key] = session, flight
        return [work]

    def worked(self, key: str, result: object, error: str, now_s: float) -> list[Effect]:
        """A thread rendered a prompt or read a reply."""
        session, flight = self._works.pop(key)
        if not session.has(flight):
            return []
        if error:
            return self._fail(session, flight, TurnRefused("internal", error))
        return self._goes_on(session, flight, result, now_s)

    def settled(self, now_s: float) -> list[Effect]:
        """Go on with turns that waited for what becomes of a newer request: it was refused."""
        if not self._contested:
            return []
        effects: list[Effect] = []
        waited, self._contested = self._contested, []
        # The newest first: if it goes to an engine, the older ones are stopped.
        for session, flight, result in sorted(waited, key=lambda one: -one[1].epoch):
            if session.has(flight):
                effects += self._goes_on(session, flight, result, now_s)
        return effects

    def _goes_on(
        self, session: Session, flight: Flight, result: object, now_s: float
    ) -> list[Effect]:
        if session.is_contested(flight):
            self._contested.append((session, flight, result))
            return []
        if flight.stage is Stage.RENDER:
            return self._rendered(session, flight, result, now_s)
        return self._commit(session, flight, result, now_s)

    def _commit(
        self, session: Session, flight: Flight, parsed: object, now_s: float
    ) -> list[Effect]:
        assert isinstance(parsed, ParsedReply)
        assert isinstance(flight.reply, SampledReply)
        assert flight.piece is not None
        assert session.has(flight), f"turn {flight.epoch} commits after it was stopped"
        plan, reply = flight.plan, flight.reply
        effects: list[Effect] = []
        if flight.stream_name:
            try:
                deltas = stream_of(flight, self.desk.renderer).finish(
                    reply.token_ids.tolist(), parsed
                )
            except TurnRefused as refused:
                return self._fail(session, flight, refused)
            effects += tell_part(flight, deltas)
        counters = self.desk.counters
        counters.turns += 1
        counters.tokens_sampled += len(reply.token_ids)
        if plan.is_retry and session.record.takes_parallel:
            counters.branches += 1
        elif plan.is_retry:
            counters.retries += 1
        message = reply_message(parsed)
        cut_by = flight.bound if reply.finish_reason is FinishReason.LENGTH else ""
        turn = Turn(flight.epoch, flight.seam, flight.piece, reply, message, cut_by)
        counters.account("tried_again", session.record.commit(plan, turn))
        session.served(flight, now_s)
        return [*effects, Reply(flight.request, chat_reply(turn, flight))]
