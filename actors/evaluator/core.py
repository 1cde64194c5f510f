"""The evaluator: held-out scores, each of exactly one version.

Owns: the held-out prompts and the evaluation under way.
Receives: published versions, verdicts of agents, trajectories of sessions.
Sends: holds to the publisher, episodes to agents, scores to the supervisor.
Invariants: EV-1 to EV-3 of `round`.
Starts: with the first published version.
Dies: when the publisher does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from milepost.actors.effects import (
    Answered,
    Ask,
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
    Work,
    WorkDone,
)
from milepost.actors.evaluator.round import Round
from milepost.actors.evaluator.scores import recorded, score, text
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.evaluator import EvaluateNow, Evaluation, Transcript
from milepost.messages.publisher import HoldVersion, ReleaseVersion, VersionHeld
from milepost.messages.rollout import EpisodeEnded, EvaluationFinished, TrajectoryLost
from milepost.messages.session import SessionsOpened, SessionsRefused, TrajectorySent
from milepost.messages.shared import Message, Prompt
from milepost.messages.supervisor import (
    Drain,
    Drained,
    EventReported,
    PeerRestarted,
    StepRecorded,
    WorkFinished,
)
from milepost.messages.trainer import VersionPublished

LEASE_MARGIN_S = 30.0
HOLD_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class SaveTranscripts(Work):
    """Append conversations to RUN/transcripts.jsonl, for people to read."""

    transcripts: tuple[Transcript, ...]


@dataclass(slots=True)
class Evaluator:
    """See the module."""

    settings: EvaluatorSettings
    prompts: Sequence[Prompt]
    round: Round | None = None
    scores: list[Evaluation] = field(default_factory=list)
    newest: int | None = None
    final: bool = False
    """True: the newest version is the last one."""
    _published_s: float = 0.0
    _is_due: bool = False
    _is_holding: bool = False
    _saving: int = 0
    _first_over: int | None = None
    """Version whose arrival, or evaluation, lets the rollout actor start."""
    _is_first_told: bool = False
    _is_finished: bool = False
    _serial: int = 0
    _draining: Request | None = None
    _is_drained: bool = False

    def __post_init__(self) -> None:
        """Names of rounds go on where a former incarnation may have stopped."""
        self._serial = self.settings.rounds_before

    def start(self, now_s: float) -> list[Effect]:
        """The publisher speaks first."""
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects = self._decide(event, now_s)
        effects += self._go_on(now_s)
        return effects

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case Answered(key, _, message):
                return self._answered(key, message, now_s)
            case Unanswered(key, to, reason):
                return self._unanswered(key, f"{to}: {reason}", now_s)
            case Woken("hold"):
                self._is_holding = False
                return []
            case Woken(key):
                return self._time_up(key)
            case WorkDone(_, _, error):
                self._saving -= 1
                if error:
                    return [self._event("transcripts", f"transcripts were not written: {error}")]
                return []
            case Taken():
                return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case VersionPublished():
                self._published(message, now_s)
            case EvaluateNow():
                self._is_due = True
            case EpisodeEnded():
                return self.round.episode_ended(message) if self.round else []
            case TrajectoryFinished():
                return self.round.trajectory_finished(message.trajectory) if self.round else []
            case TrajectoryLost():
                lost = (message.trajectory_id, message.attempt, message.cause)
                return self.round.lost(*lost) if self.round else []
            case PeerRestarted():
                return self._peer_restarted(message.actor)
            case Drain():
                assert request is not None
                return self._drain(request)
            case _:
                raise TypeError(f"evaluator was told {type(message).__name__} by {source}")
        return []

    # ---- when ----------------------------------------------------------------------------

    def _published(self, message: VersionPublished, now_s: float) -> None:
        settings, is_first = self.settings, self.newest is None
        if self.newest is not None and message.version <= self.newest:
            return
        self.newest, self.final = message.version, message.final
        self._published_s = now_s
        every = settings.every_versions
        if is_first:
            # A resumed run was evaluated before its first step already.
            self._is_due = settings.at_start and message.version == settings.resumed_version == 0
            if not self._is_due:
                self._first_over = message.version
        elif every and message.version % every == 0:
            self._is_due = True
        if message.final and settings.at_end:
            self._is_due = True

    def _go_on(self, now_s: float) -> list[Effect]:
        if self._draining:
            return self._reply_drained()
        effects: list[Effect] = []
        if self.round is not None:
            effects += self.round.send_out()
            if self.round.is_over:
                effects += self._end_round(now_s)
        if self._is_due and self.round is None and not self._is_holding:
            self._is_holding = True
            lease_s = self.settings.deadline_s + LEASE_MARGIN_S
            hold = HoldVersion(holder="evaluator", lease_s=lease_s)
            effects.append(Ask("publisher", hold, "hold", deadline_s=self.settings.deadline_s))
        return effects + self._say_first() + self._finish()

    def _say_first(self) -> list[Effect]:
        if self._first_over is None or not self.settings.waits_for_rollout:
            return []
        version, self._first_over = self._first_over, None
        self._is_first_told = True
        return [Tell("rollout", EvaluationFinished(version=version), "first")]

    def _finish(self) -> list[Effect]:
        is_idle = self.round is None and not self._is_due and not self._saving
        if self._is_finished or not self.final or not is_idle:
            return []
        self._is_finished = True
        summary = {"evaluations": [msgspec.to_builtins(each) for each in self.scores]}
        done = WorkFinished(actor="evaluator", summary=summary)
        return [Tell("supervisor", done, "finished")]

    # ---- one round -----------------------------------------------------------------------

    def _held(self, version: int, now_s: float) -> list[Effect]:
        if self._draining:
            return [Tell("publisher", ReleaseVersion(holder="evaluator"))]
        self._is_due = False
        self._serial += 1
        self.round = Round(self.settings, self.prompts, version, self._serial, now_s)
        return [Wake(f"deadline/{self._serial}", now_s + self.settings.deadline_s)]

    def _time_up(self, key: str) -> list[Effect]:
        if self.round is None or key != f"deadline/{self.round.serial}":
            return []
        said = f"evaluation ran out of its {self.settings.deadline_s} s: {self.round}"
        return [self._event("evaluation_late", said), *self.round.stop(said)]

    def _end_round(self, now_s: float) -> list[Effect]:
        assert self.round is not None
        ended, self.round = self.round, None
        self._is_holding = False
        success = self.settings.success_metric
        scores = {mode: score(tally, success) for mode, tally in ended.tallies.items()}
        measured = Evaluation(
            version=ended.version,
            seconds=now_s - ended.started_s,
            delay_s=now_s - self._published_s,
            sampled=scores.get("sampled"),
            greedy=scores.get("greedy"),
        )
        effects: list[Effect] = [Tell("publisher", ReleaseVersion(holder="evaluator"))]
        for mode, each in scores.items():
            if each is None:
                tally = ended.tallies[mode]
                said = (
                    f"version {ended.version} {mode}: no score, of {tally.num_prompts} prompts "
                    f"{tally.num_failed} failed, {tally.num_mixed} had mixed versions, "
                    f"{tally.num_missing} had no time"
                )
                effects.append(self._event("evaluation_failed", said))
        if any(scores.values()):
            effects += self._report(measured)
        effects += self._save(ended)
        if not self._is_first_told:
            self._first_over = ended.version
        return effects

    def _report(self, measured: Evaluation) -> list[Effect]:
        self.scores.append(measured)
        said = text(measured, self.settings.success_metric)
        line = StepRecorded(source="evaluator", step=measured.version, metrics=recorded(measured))
        event = self._event("evaluation", said, msgspec.to_builtins(measured))
        return [event, Tell("supervisor", line)]

    def _save(self, ended: Round) -> list[Effect]:
        kept = tuple(
            transcript
            for tally in ended.tallies.values()
            for _, transcript in sorted(tally.transcripts.items())
        )
        if not kept:
            return []
        self._saving += 1
        return [SaveTranscripts(f"save/{ended.serial}", kept)]

    def _event(self, kind: str, said: str, values: dict[str, Any] | None = None) -> Effect:
        event = EventReported(source="evaluator", kind=kind, text=said, values=values or {})
        return Tell("supervisor", event)

    # ---- answers and peers ---------------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        if isinstance(message, VersionHeld):
            return self._held(message.version, now_s)
        kind, trajectory_id, attempt = _parse(key)
        if self.round is None:
            return []
        if isinstance(message, SessionsOpened):
            address = message.addresses[0] if message.addresses else ""
            return self.round.opened(trajectory_id, attempt, address)
        if isinstance(message, TrajectorySent):
            return []
        match message:
            case SessionsRefused(reason=cause) | TrajectoryLost(cause=cause):
                return self.round.lost(trajectory_id, attempt, cause)
            case _:
                raise TypeError(f"evaluator was answered {type(message).__name__} to {kind}")

    def _unanswered(self, key: str, reason: str, now_s: float) -> list[Effect]:
        kind, trajectory_id, attempt = _parse(key)
        if kind == "hold":
            said = f"the publisher granted no hold: {reason}"
            return [self._event("evaluation_late", said), Wake("hold", now_s + HOLD_AGAIN_S)]
        if kind == "first" and self.newest is not None:
            return [Tell("rollout", EvaluationFinished(version=self.newest), "first")]
        if kind == "finished":
            self._is_finished = False
            return []
        if self.round is None or not trajectory_id:
            return []
        return self.round.lost(trajectory_id, attempt, reason)

    def _peer_restarted(self, actor: str) -> list[Effect]:
        if actor == "rollout" and self.newest is not None and self._is_first_told:
            return [Tell("rollout", EvaluationFinished(version=self.newest), "first")]
        return self.round.peer_lost(actor) if self.round else []

    # ---- draining ------------------------------------------------------------------------

    def _drain(self, request: Request) -> list[Effect]:
        self._draining = request
        self._is_due = False
        if self.round is None:
            return []
        effects = self.round.stop("draining")
        self.round = None
        return [*effects, Tell("publisher", ReleaseVersion(holder="evaluator"))]

    def _reply_drained(self) -> list[Effect]:
        if self._saving or self._is_drained or self._draining is None:
            return []
        self._is_drained = True
        return [Reply(self._draining, Drained(actor="evaluator"))]

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert that counts add up (EV-3)."""
        if self.round is not None:
            for tally in self.round.tallies.values():
                assert tally.num_missing >= 0, tally

    def statistics(self) -> dict[str, object]:
        """The round under way and the last scores."""
        return {
            "newest": self.newest,
            "round": str(self.round) if self.round else "",
            "scores": len(self.scores),
        }

    def working_on(self) -> str:
        """What it waits for, in names."""
        if self.round is not None:
            return str(self.round)
        if self._is_holding:
            return "waits for the publisher to hold the served version"
        return "waits for the next version to evaluate"


def _parse(key: str) -> tuple[str, str, int]:
    kind, _, rest = key.partition("/")
    trajectory_id, _, attempt = rest.rpartition("/")
    return kind, trajectory_id, int(attempt) if attempt.isdecimal() else -1
