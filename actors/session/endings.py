"""The end of a session: its row assembled, delivered, and the verdict's asker told.

A verdict is acknowledged only after the destination has taken the trajectory. Repeating it changes
nothing: while it is on its way the repeats wait with the first, later they get the same answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.effects import Effect, Reply, Request, Tell, Wake
from milepost.actors.session.state import Ending, Session
from milepost.actors.session.work import AssembleRows, Refusal
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.rollout import TrajectoryLost
from milepost.messages.session import FinishTrajectory, TrajectorySent
from milepost.messages.shared import Purpose, Status
from milepost.messages.trajectory import NON_GENERATION

if TYPE_CHECKING:
    from milepost.actors.session.desk import Desk
    from milepost.messages.trajectory import Trajectory

DELIVERIES_MAX = 5
BACKOFF_S = 0.5
NOT_TRAINED = {Purpose.EVALUATE: "evaluated", Purpose.PROBE: "probed"}
"""Account of the tokens of rows that nobody trains, by what they were for."""
REMEMBERED_MAX = 16384
"""Delivered trajectories whose verdict, repeated, still gets its answer."""


@dataclass(slots=True)
class Endings:
    """All sessions of one session actor that have their verdict."""

    desk: Desk
    ended: list[Session] = field(default_factory=list)
    """Sessions that are over since the core last took them out of its books."""
    _under_way: dict[str, Session] = field(default_factory=dict)
    """By the key of the effect each waits for."""
    _sent: OrderedDict[tuple[str, int], TrajectorySent] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        """Verdicts under way."""
        return len(self._under_way)

    def finish(
        self,
        session: Session | None,
        verdict: FinishTrajectory,
        source: str,
        request: Request | None,
    ) -> list[Effect]:
        """Deliver the trajectory. The turn in flight, if any, was stopped before."""
        answered = self._sent.get((verdict.trajectory_id, verdict.attempt))
        if answered is not None:
            return [Reply(request, answered)] if request else []
        if session and session.ending and session.spec.attempt == verdict.attempt:
            # The first verdict stands, whatever this one says.
            session.ending.waiting += [request] if request else []
            return []
        fault = self._fault(session, verdict)
        if not fault and session is not None:
            fault = self._cut_unseen(session, verdict)
        if fault or session is None:
            return self._lost(session, verdict, fault, source, [request] if request else [])
        ending = Ending(verdict, [request] if request else [])
        session.ending = ending
        metadata = {
            "attempt": session.spec.attempt,
            "session": self.desk.name,
            "engine_moves": list(session.moves),
            NON_GENERATION: round(session.non_generation_s, 6),
        }
        work = AssembleRows(
            self.desk.key("assemble"),
            session.spec,
            session.record,
            verdict,
            session.refused_by or verdict.limit,
            session.bounds,
            metadata,
            self.desk.rules,
        )
        if (done := self.desk.try_inline(work)) is not None:
            return self._assembled(session, done)
        self._under_way[work.key] = session
        return [work]

    def _fault(self, session: Session | None, verdict: FinishTrajectory) -> str:
        if session is None:
            return f"{self.desk.name} has no session {verdict.trajectory_id}"
        if session.spec.attempt != verdict.attempt:
            return f"the session is open for attempt {session.spec.attempt}"
        if verdict.status not in (Status.COMPLETED, Status.TRUNCATED):
            return f"status {verdict.status.value} has no trajectory"
        if not math.isfinite(verdict.reward):
            return f"the reward is {verdict.reward}, no finite number"
        if not session.record.num_turns:
            return "no reply was generated in this session"
        return ""

    def _cut_unseen(self, session: Session, verdict: FinishTrajectory) -> str:
        """Cut off turns that the reward has not seen; why that is not possible, if it is not.

        A turn commits when its reply is whole; the agent may have given up waiting just then, and
        gone on with another branch.
        """
        if verdict.generation is None:
            return ""
        counters, record = self.desk.counters, session.record
        turns, tokens = record.num_turns, record.num_sampled_tokens
        try:
            record.cut_after(verdict.generation)
        except ValueError as error:
            return str(error)
        if verdict.received:
            record.keep_received(frozenset(verdict.received))
        if turns == record.num_turns:
            return ""
        counters.turns_cut += turns - record.num_turns
        counters.account("unseen", tokens - record.num_sampled_tokens)
        session.refused_by = ""
        return "" if record.num_turns else "no reply is left that the verdict has seen"

    def worked(self, key: str, result: object, error: str) -> list[Effect]:
        """A thread assembled a row."""
        session = self._under_way.pop(key)
        if session.ending is None:
            return []
        if error:
            return self._give_up(session, f"assembly failed: {error}")
        return self._assembled(session, result)

    def _assembled(self, session: Session, result: object) -> list[Effect]:
        assert session.ending is not None
        if isinstance(result, Refusal):
            return self._give_up(session, result.reason)
        assert isinstance(result, tuple)
        counters = self.desk.counters
        counters.rows += len(result)
        for row in result:
            self.desk.count_mismatches(row.certificate.mismatch_kinds)
        trained = sum(map(_trainable, result))
        counters.account("not_trained", session.record.num_sampled_tokens - trained)
        session.ending.rows = result
        return self._deliver(session)

    def _deliver(self, session: Session) -> list[Effect]:
        ending = session.ending
        assert ending is not None
        assert ending.rows
        ending.tries += 1
        key = self.desk.key("deliver")
        self._under_way[key] = session
        message = TrajectoryFinished(trajectory=ending.rows[0], others=ending.rows[1:])
        return [Tell(session.spec.deliver_to, message, key, confirm=True)]

    def taken(self, key: str) -> list[Effect]:
        """The destination has the trajectory."""
        session = self._under_way.pop(key)
        ending, spec = session.ending, session.spec
        if ending is None:
            return []
        sent = TrajectorySent(
            trajectory_id=spec.trajectory_id,
            num_tokens=sum(row.token_ids.shape[0] for row in ending.rows),
            num_sampled_tokens=session.record.num_sampled_tokens,
        )
        self._sent[spec.trajectory_id, spec.attempt] = sent
        if len(self._sent) > REMEMBERED_MAX:
            self._sent.popitem(last=False)
        if (account := NOT_TRAINED.get(spec.purpose)) is not None:
            self.desk.counters.account(account, sum(map(_trainable, ending.rows)))
        self.desk.counters.trajectories_sent += 1
        self.ended.append(session)
        return [Reply(request, sent) for request in ending.waiting]

    def undelivered(self, key: str, to: str, reason: str, now_s: float) -> list[Effect]:
        """The destination did not take it."""
        session = self._under_way.pop(key)
        ending = session.ending
        if ending is None:
            return []
        if ending.tries >= DELIVERIES_MAX:
            return self._give_up(session, f"{to} did not take it in {ending.tries} tries: {reason}")
        self._under_way[key] = session
        return [Wake(key, now_s + BACKOFF_S * ending.tries)]

    def woken(self, key: str) -> list[Effect]:
        """Time for another try."""
        session = self._under_way.pop(key)
        return self._deliver(session) if session.ending is not None else []

    def _give_up(self, session: Session, cause: str) -> list[Effect]:
        ending = session.ending
        assert ending is not None
        return self._lost(session, ending.verdict, cause, session.opened_by, ending.waiting)

    def drop(self, session: Session, reason: str) -> list[Effect]:
        """The session is closed while its verdict is on its way."""
        ending, session.ending = session.ending, None
        if ending is None:
            return []
        lost = TrajectoryLost(
            trajectory_id=session.spec.trajectory_id, attempt=session.spec.attempt, cause=reason
        )
        return [Reply(request, lost) for request in ending.waiting]

    def _lost(
        self,
        session: Session | None,
        verdict: FinishTrajectory,
        cause: str,
        source: str,
        waiting: list[Request],
    ) -> list[Effect]:
        self.desk.counters.trajectories_lost += 1
        lost = TrajectoryLost(
            trajectory_id=verdict.trajectory_id, attempt=verdict.attempt, cause=cause
        )
        if session is not None and session.spec.attempt == verdict.attempt:
            session.ending = None
            self.desk.counters.account("undelivered", session.record.num_sampled_tokens)
            self.ended.append(session)
        if not waiting:
            return [Tell(source, lost)]
        return [Reply(request, lost) for request in waiting]


def _trainable(row: Trajectory) -> int:
    return bytes(row.loss_mask.data).count(1)
