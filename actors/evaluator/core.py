"""The evaluator: held-out scores, each of exactly one version.

Three ways, one of which the topology names. Shared engines: the version that the rollout's engines
serve is held while it is measured. Engines of its own (`[actors.evaluation_engine]`): the published
version is moved to them and held there, and training goes on. A class of the user's
(`actors.evaluator.external`): checkpoints are measured in a process beside the run, see
`checkpoints`.

Owns: the held-out prompts and the evaluation under way.
Receives: published versions, verdicts of agents, trajectories of sessions, offered checkpoints; of
    hosts whose room is not fixed, what room they have.
Sends: holds to the publisher, episodes to agents, scores to the supervisor.
Invariants: EV-1 to EV-3 of `round`, and
    EV-4 (accounted): a version that was due has a score, or a reason why it has none; also when
        the evaluator dies, since its next life begins with what the journal says (`records`).
    EV-5 (owed): with `at_end` the last version has a score, or the run ends with that problem.
Starts: with the first published version.
Where only agents from outside play, an evaluation waits for one of them: the first without an
end, since nothing can be trained before either, later ones as long as an evaluation may take.
Dies: when the publisher does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from milepost.actors.evaluator.book import TOLD, WRITTEN, Book
from milepost.actors.evaluator.checkpoints import Checkpoints
from milepost.actors.evaluator.holding import AGAIN_S, NAME, UNHEALTHY, Holding
from milepost.actors.evaluator.hosts import Hosts
from milepost.actors.evaluator.owed import OWED
from milepost.actors.evaluator.records import Due, Past
from milepost.actors.evaluator.results import Results
from milepost.actors.evaluator.round import Round
from milepost.actors.evaluator.schedule import NOBODY, Schedule
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.words import event
from milepost.actors.evaluator.works import SaveTranscripts
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.evaluator import CheckpointOffered, EvaluateNow
from milepost.messages.rollout import (
    AgentLeft,
    AgentReady,
    EpisodeEnded,
    EvaluationFinished,
    TrajectoryLost,
)
from milepost.messages.session import SessionsOpened, SessionsRefused, TrajectorySent
from milepost.messages.shared import Message, Prompt
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished


@dataclass(slots=True)
class Evaluator:
    """See the module."""

    settings: EvaluatorSettings
    prompts: Sequence[Prompt]
    past: Past = field(default_factory=Past)
    """What former lives left."""
    book: Book = field(init=False)
    schedule: Schedule = field(init=False)
    holding: Holding = field(init=False)
    hosts: Hosts = field(init=False)
    results: Results = field(init=False)
    checkpoints: Checkpoints | None = None
    """With a class of the user's; then there are no rounds."""
    round: Round | None = None
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
        self.book = Book(self.settings.success_metric, self.past)
        self.schedule = Schedule(self.settings, self.past)
        self.holding = Holding(self.settings, self.schedule)
        self.hosts = Hosts(self.settings)
        self.results = Results(self.settings, self.schedule, self.book)
        self._serial = self.settings.rounds_before
        if self.settings.external:
            debt, scores = self.results.debt, self.results.scores
            self.checkpoints = Checkpoints(self.settings, self.book, debt, scores)

    def start(self, now_s: float) -> list[Effect]:
        """The publisher speaks first; but the starting checkpoint is there, and what was left."""
        first = self.checkpoints.start(now_s) if self.checkpoints else []
        return [*self.book.start(), *first]

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
                self.holding.woken()
                return []
            case Woken("patience"):
                if self.hosts.woken():
                    self.schedule.drop_due(NOBODY)
                return []
            case Woken("first"):
                return self._tell_first()
            case Woken(key) if key == OWED:
                return self._try_again()
            case Woken("finished"):
                self._is_finished = False
                return []
            case Woken(key):
                return self.book.woken(key) if key.startswith(TOLD) else self._time_up(key)
            case WorkDone(key, _, error):
                return self._worked(event, key, error, now_s)
            case Taken(key):
                return self.book.taken(key)

    def _worked(self, done: WorkDone, key: str, error: str, now_s: float) -> list[Effect]:
        if key.startswith(WRITTEN):
            return self.book.written(done)
        if not key.startswith("save/"):
            assert self.checkpoints is not None, key
            return self.checkpoints.done(done, now_s)
        self._saving -= 1
        return [event("transcripts", f"transcripts were not written: {error}")] if error else []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case VersionPublished():
                return self._published(message, now_s)
            case CheckpointOffered():
                assert request is not None
                assert self.checkpoints is not None, "nobody measures checkpoints here"
                return self.checkpoints.offered(message, request, now_s)
            case EvaluateNow():
                self.schedule.out_of_turn()
            case EpisodeEnded():
                return self.round.episode_ended(message) if self.round else []
            case TrajectoryFinished(trajectory=first, others=others):
                return self.round.trajectory_finished(first, others) if self.round else []
            case TrajectoryLost():
                lost = (message.trajectory_id, message.attempt, message.cause)
                return self.round.lost(*lost) if self.round else []
            case AgentReady(agent=agent, episodes_max=room):
                self.hosts.room[agent] = room
            case AgentLeft(agent=agent):
                self.hosts.room[agent] = 0
            case PeerRestarted():
                return self._peer_restarted(message.actor)
            case Drain():
                assert request is not None
                return self._drain(request)
            case _:
                raise TypeError(f"evaluator was told {type(message).__name__} by {source}")
        return []

    # ---- when ----------------------------------------------------------------------------

    def _published(self, message: VersionPublished, now_s: float) -> list[Effect]:
        if self.checkpoints is not None:
            return []
        schedule, is_first = self.schedule, self.schedule.newest is None
        measured = self.round.version if self.round else None
        schedule.published(message.version, final=message.final, measured=measured, now_s=now_s)
        # Where something was trained already, the first evaluation is over, whoever did it.
        if is_first and (schedule.due is None or message.version > self.settings.resumed_version):
            self._first_over = message.version
        return self.holding.inherit() if is_first else []

    @property
    def _is_busy(self) -> bool:
        return self.round is not None or self.holding.is_asking

    @property
    def _is_quiet(self) -> bool:
        return not self._saving and self.book.is_quiet

    def _go_on(self, now_s: float) -> list[Effect]:
        if self._draining:
            return self._reply_drained()
        effects: list[Effect] = []
        if self.round is not None:
            effects += self.round.send_out()
            if self.round.is_over:
                effects += self._end_round(now_s)
        if self.schedule.due is not None and not self._is_busy:
            if not self.hosts.is_empty:
                effects.append(self.holding.ask())
            elif self._is_first_told:
                effects += self.hosts.wait(now_s)
        effects += self.holding.brake(is_busy=self._is_busy)
        skipped, self.schedule.skipped = self.schedule.skipped, []
        for version, reason in skipped:
            why = self.holding.refusal if reason == UNHEALTHY else str(self.round or "")
            effects += self.results.skipped(version, reason, why, now_s)
        # The newest goes last: a next life takes it that everything before it is written.
        return effects + self._note_due() + self._say_first() + self._finish()

    def _note_due(self) -> list[Effect]:
        """Whoever comes after us is to know what was due, whatever becomes of us."""
        schedule, known = self.schedule, self.past.due
        ours = {schedule.due, schedule.asked, self.round.version if self.round else None}
        new = sorted(each for each in ours if each is not None and each not in known)
        return [effect for each in new for effect in self.book.begin(Due(version=each))]

    def _try_again(self) -> list[Effect]:
        if self.results.debt.woken():
            if self.checkpoints is not None:
                return self.checkpoints.measure_again()
            self.schedule.out_of_turn()
        return []

    def _say_first(self) -> list[Effect]:
        if self._first_over is None or not self.settings.waits_for_rollout:
            return []
        version, self._first_over = self._first_over, None
        self._is_first_told = True
        return [Tell("rollout", EvaluationFinished(version=version), "first")]

    def _tell_first(self) -> list[Effect]:
        newest = self.schedule.newest
        if newest is None:
            return []
        return [Tell("rollout", EvaluationFinished(version=newest), "first")]

    def _finish(self) -> list[Effect]:
        is_idle = not self._is_busy and self.schedule.due is None and self._is_quiet
        is_idle = is_idle and not self.results.debt.is_waiting
        is_over = self.checkpoints.is_over if self.checkpoints else self.schedule.final
        if self._is_finished or not is_over or not is_idle:
            return []
        self._is_finished = True
        done = self.results.finished(NAME)
        return [Tell("supervisor", done, "finished")]

    # ---- one round -----------------------------------------------------------------------

    def _held(self, version: int, now_s: float) -> list[Effect]:
        if self._draining:
            return [self.holding.release()]
        self._serial += 1
        settings, prompts, room = self.settings, self.prompts, self.hosts.room
        self.round = Round(settings, prompts, version, self._serial, now_s, room)
        return [Wake(f"deadline/{self._serial}", now_s + self.settings.deadline_s)]

    def _time_up(self, key: str) -> list[Effect]:
        if self.round is None or key != f"deadline/{self.round.serial}":
            return []
        said = f"evaluation ran out of its {self.settings.deadline_s} s: {self.round}"
        return [event("evaluation_late", said), *self.round.stop(said)]

    def _end_round(self, now_s: float) -> list[Effect]:
        assert self.round is not None
        ended, self.round = self.round, None
        effects = [self.holding.release(), *self.results.measured(ended, now_s)]
        effects += self._save(ended)
        if not self._is_first_told:
            self._first_over = ended.version
        return effects

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

    # ---- answers and peers ---------------------------------------------------------------

    def _answered(self, key: str, message: Message, now_s: float) -> list[Effect]:
        match key:
            case "hold":
                version, effects = self.holding.answered(message)
                return effects if version is None else self._held(version, now_s)
            case "brake":
                return []
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
        if kind in ("hold", "brake"):
            return self.holding.unanswered(kind, reason, now_s)
        if kind == TOLD:
            return self.book.untaken(key, now_s)
        if kind in ("first", "finished"):
            return [Wake(kind, now_s + AGAIN_S)]
        if self.round is None or not trajectory_id:
            return []
        return self.round.lost(trajectory_id, attempt, reason)

    def _peer_restarted(self, actor: str) -> list[Effect]:
        self.hosts.restarted(actor)
        if actor == "rollout" and self._is_first_told:
            return self._tell_first()
        return self.round.peer_lost(actor) if self.round else []

    # ---- draining ------------------------------------------------------------------------

    def _drain(self, request: Request) -> list[Effect]:
        self._draining = request
        self.schedule.due = None
        effects = self.holding.brake(is_busy=False)
        if self.round is None:
            return effects
        effects += self.round.stop("draining")
        self.round = None
        return [*effects, self.holding.release()]

    def _reply_drained(self) -> list[Effect]:
        if not self._is_quiet or self._is_drained or self._draining is None:
            return []
        self._is_drained = True
        return [Reply(self._draining, Drained(actor=NAME))]

    # ---- what others see -----------------------------------------------------------------

    def validate(self) -> None:
        """Assert that counts add up (EV-3)."""
        if self.round is not None:
            for tally in self.round.tallies.values():
                assert tally.num_missing >= 0, tally

    def statistics(self) -> dict[str, object]:
        """The round under way and the last scores."""
        return {
            "newest": self.schedule.newest,
            "due": self.schedule.due,
            "round": str(self.round) if self.round else "",
            "scores": len(self.results.scores),
        }

    def working_on(self) -> str:
        """What it waits for, in names."""
        if self.checkpoints is not None:
            return str(self.checkpoints)
        if self.round is not None:
            return str(self.round)
        if self.holding.is_asking:
            return "waits for the publisher to hold the served version"
        if self.schedule.due is not None and self.hosts.is_empty:
            return "waits for an agent from outside"
        if self.results.debt.is_waiting:
            return "waits to try again for the score of the last version"
        return "waits for the next version to evaluate"


def _parse(key: str) -> tuple[str, str, int]:
    kind, _, rest = key.partition("/")
    trajectory_id, _, attempt = rest.rpartition("/")
    return kind, trajectory_id, int(attempt) if attempt.isdecimal() else -1
