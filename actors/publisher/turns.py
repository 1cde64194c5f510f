"""The canary as agents meet the policy: one turn through a session, before a version is published.

Engines have answered `proofs` when they were asked directly. Nobody asks them so in a run: words
are rendered by a session, which picks an engine and keeps what it sampled as a row. So the
publisher takes an agent's part once: it opens a session, asks for a reply of one token, gives a
verdict, and is delivered the row as a buffer would be. The row must say:

    same tokens    the prompt is the one that the trainer rendered, id for id;
    same version   an engine of the run sampled the token under this version, with its digest, and
                   attended to no keys and values of an older one;
    same log-prob  the token's log-prob is the trainer's, within the limit of the other canary.

One token, because the trainer trains on meanwhile: what it thinks of every token that may come
first, it said when it exported.

A session that does not answer in time, is dead or drains, is no evidence against the weights. The
next one is asked, and at the end the version is published without, and that is said. What the
session refuses as a mistake of the asker is evidence: agents would be refused the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from milepost.actors.effects import Ask, Effect, Tell, Wake
from milepost.actors.publisher.canary import prompt_fault, turn_difference
from milepost.actors.publisher.lanes import Weights
from milepost.actors.publisher.settings import PublisherSettings
from milepost.messages.publisher import ProbeTurn
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import (
    AbandonTrajectory,
    ChatRefused,
    ChatReply,
    ChatTurn,
    FinishTrajectory,
    OpenSessions,
    SessionsOpened,
    SessionSpec,
    SessionsRefused,
)
from milepost.messages.shared import (
    EpisodeLimits,
    Message,
    Purpose,
    SamplingParams,
    Status,
    VersionSpan,
)
from milepost.messages.trajectory import Trajectory

TURN: Final = "turn/"
AGAIN_S: Final = 0.25
GROUP: Final = "canary"
EVIDENCE: Final = frozenset({"bad_request", "not_append_only", "limit", "truncated"})
"""Refusals of a turn that say what agents would be told, too."""


@dataclass(slots=True)
class _Visit:
    weights: Weights
    probe: ProbeTurn
    since_s: float
    session: str
    name: str
    """Of its trajectory."""


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """What came of an event.

    Attributes:
        effects: what is asked next.
        weights: the version that it is over for; None while it is not.
        reason: why the version must not be published; empty when it may.
        missed: why there is no evidence; empty when there is.
        difference: |session - trainer| of the token's log-prob, nats.
        seconds: it took in all.
    """

    effects: tuple[Effect, ...] = ()
    weights: Weights | None = None
    reason: str = ""
    missed: str = ""
    difference: float | None = None
    seconds: float = 0.0


NOTHING: Final = TurnVerdict()


@dataclass(slots=True)
class Turns:
    """See the module. At most one turn is under way."""

    settings: PublisherSettings
    num_asked: int = 0
    num_missed: int = 0
    """Versions that were published without the turn."""
    _visit: _Visit | None = None
    _last_miss: str = ""
    _late_key: str = ""
    """Of the wake that ends the visit; those of visits before mean nothing."""

    def wanted(self, weights: Weights) -> bool:
        """The version is not published before a turn was compared."""
        return bool(self.settings.sessions) and weights.ready.probe_turn is not None

    def begin(self, weights: Weights, now_s: float) -> list[Effect]:
        """Ask for the turn; nothing, if that was done."""
        if self._visit is not None and self._visit.weights is weights:
            return []
        probe = weights.ready.probe_turn
        assert probe is not None
        self._last_miss = "nobody answered"
        self._visit = _Visit(weights, probe, now_s, "", "")
        self._late_key = f"{TURN}{self.num_asked + 1}/late"
        late = Wake(self._late_key, now_s + self.settings.turn_s)
        return [late, *self._open(self._visit)]

    def forget(self) -> list[Effect]:
        """The version was given up."""
        visit, self._visit = self._visit, None
        return self._leave(visit) if visit else []

    def owns(self, key: str) -> bool:
        """The key is of a question or a wake of this part."""
        return key.startswith(TURN)

    # ---- events --------------------------------------------------------------------------

    def answered(self, key: str, message: Message, now_s: float) -> TurnVerdict:
        """A session answered."""
        visit = self._visit
        if visit is None or not self._is_open(key):
            return NOTHING
        match message:
            case SessionsOpened():
                turn = ChatTurn(trajectory_id=visit.name, messages=visit.probe.messages, attempt=0)
                return TurnVerdict((self._ask(visit, turn, "chat"),))
            case ChatReply(generation=generation):
                verdict = FinishTrajectory(
                    trajectory_id=visit.name,
                    attempt=0,
                    status=Status.COMPLETED,
                    reward=0.0,
                    generation=generation,
                )
                return TurnVerdict((self._ask(visit, verdict, "finish"),))
            case ChatRefused(kind=kind, reason=reason) if kind in EVIDENCE:
                said = f"{visit.session} refuses the turn as agents would be refused: {reason}"
                return self._over(now_s, reason=said)
            case ChatRefused(reason=reason) | SessionsRefused(reason=reason):
                return self._again(f"{visit.session} refused: {reason}", now_s)
            case TrajectoryLost(cause=cause):
                return self._again(f"{visit.session} lost the row: {cause}", now_s)
            case _:
                # `TrajectorySent`: the row came before it, or was not the one asked for.
                return self._again(f"{visit.session} sent another row", now_s)

    def delivered(
        self, row: Trajectory, now_s: float, *, confirmed: Collection[str]
    ) -> TurnVerdict:
        """A session delivered a row.

        Args:
            row: of some turn.
            now_s: now.
            confirmed: engines that confirmed the version and have not left since.
        """
        visit = self._visit
        if visit is None or row.trajectory_id != visit.name:
            return NOTHING
        engine = row.turns[-1].engine if row.turns else ""
        if engine in self.settings.engines and engine not in confirmed:
            # It died, or is silent, and is brought to the version before anybody counts on it.
            return self._again(f"{engine} answered {visit.session}, and has left", now_s)
        fault = self._fault(row, visit)
        difference = turn_difference(row, visit.probe)
        limit = self.settings.canary_difference_max
        if not fault and difference > limit:
            fault = (
                f"the log-prob of its token differs from the trainer's by {difference:.2e} nats, "
                f"the limit is {limit:.2e}"
            )
        if fault:
            where = f"{visit.session} over {engine or 'no engine'}"
            said = f"a turn through {where} under version {visit.weights.version}: {fault}"
            return self._over(now_s, reason=said)
        return self._over(now_s, difference=difference)

    def unanswered(self, key: str, reason: str, now_s: float) -> TurnVerdict:
        """A session is dead, or silent."""
        if self._visit is None or not self._is_open(key):
            return NOTHING
        return self._again(f"{self._visit.session} did not answer: {reason}", now_s)

    def restarted(self, session: str, now_s: float) -> TurnVerdict:
        """A session actor died, and what was asked of it."""
        if self._visit is None or self._visit.session != session:
            return NOTHING
        return self._again(f"{session} died", now_s)

    def woken(self, key: str, now_s: float) -> TurnVerdict:
        """A pause, or the whole time, is over."""
        visit = self._visit
        if visit is None:
            return NOTHING
        if key == self._late_key:
            return self._over(now_s, missed=self._last_miss)
        if key == f"{TURN}{self.num_asked}/again":
            return TurnVerdict(tuple(self._open(visit)))
        return NOTHING

    # ---- judging -------------------------------------------------------------------------

    def _fault(self, row: Trajectory, visit: _Visit) -> str:
        """Why the row is not of this turn: tokens, engine, version, weights, cache; or empty."""
        if fault := prompt_fault(row, visit.probe):
            return fault
        ready, (turn,) = visit.weights.ready, row.turns
        if turn.engine not in self.settings.engines:
            known = ", ".join(self.settings.engines)
            return f"{turn.engine!r} is no engine of the run, they are {known}"
        wanted = (VersionSpan(start=turn.prompt_end, end=turn.end, version=ready.version),)
        if row.spans != wanted:
            found = ", ".join(str(span.version) for span in row.spans) or "none"
            return f"its token was sampled under version {found}"
        for used in turn.weights:
            if used.digest != ready.digest:
                return f"its token was sampled by weights {used.digest}, not {ready.digest}"
            if used.kv_version != ready.version:
                return f"its token attends to keys and values of version {used.kv_version}"
        return "" if turn.weights else "nothing is said of the weights that sampled its token"

    # ---- steps ---------------------------------------------------------------------------

    def _open(self, visit: _Visit) -> list[Effect]:
        sessions = self.settings.sessions
        visit.session = sessions[self.num_asked % len(sessions)]
        self.num_asked += 1
        visit.name = f"{GROUP}.{self.settings.life}.{self.num_asked}"
        spec = SessionSpec(
            trajectory_id=visit.name,
            group_id=GROUP,
            prompt_id=GROUP,
            attempt=0,
            group_size=1,
            sampling=SamplingParams(tokens_max=1, seed=self.num_asked),
            limits=EpisodeLimits(turns_max=1, reply_tokens_max=1, seconds_max=self.settings.turn_s),
            purpose=Purpose.PROBE,
            deliver_to="publisher",
            # Any version: an engine that serves another one shall say so, not wait.
            version_min=0,
        )
        return [self._ask(visit, OpenSessions(sessions=(spec,)), "open")]

    def _ask(self, visit: _Visit, message: Message, step: str) -> Ask:
        key = f"{TURN}{self.num_asked}/{step}"
        return Ask(visit.session, message, key, self.settings.turn_s)

    def _is_open(self, key: str) -> bool:
        return key.startswith(f"{TURN}{self.num_asked}/")

    def _again(self, why: str, now_s: float) -> TurnVerdict:
        visit = self._visit
        assert visit is not None
        self._last_miss = why
        left = self._leave(visit)
        visit.name = ""
        return TurnVerdict((*left, Wake(f"{TURN}{self.num_asked}/again", now_s + AGAIN_S)))

    def _leave(self, visit: _Visit) -> list[Effect]:
        if not visit.name:
            return []
        word = AbandonTrajectory(trajectory_id=visit.name, attempt=0, reason="the canary is over")
        return [Tell(visit.session, word)]

    def _over(
        self, now_s: float, *, reason: str = "", missed: str = "", difference: float | None = None
    ) -> TurnVerdict:
        visit, self._visit = self._visit, None
        assert visit is not None
        self.num_missed += bool(missed)
        left = () if difference is not None else tuple(self._leave(visit))
        seconds = now_s - visit.since_s
        return TurnVerdict(left, visit.weights, reason, missed, difference, seconds)
