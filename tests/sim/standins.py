"""Small scripted actors that follow the messages of the ones with a model inside."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

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
)
from milepost.messages.agent import CancelEpisode, RunEpisode
from milepost.messages.buffer import (
    Batch,
    BatchExhausted,
    BatchRequested,
    CheckpointSaved,
    StepTrained,
    TrajectoriesFinished,
    TrajectoryFinished,
)
from milepost.messages.bulk import Bulk
from milepost.messages.engine import (
    AbortEpoch,
    ActivateEpoch,
    EpochAnswer,
    EpochConfirmed,
    Generate,
    Generated,
    GenerateRefused,
    PrepareEpoch,
    Score,
    Scored,
    TensorSpec,
    WeightBucket,
)
from milepost.messages.publisher import BucketReady, EngineReady, VersionReady
from milepost.messages.rollout import EpisodeEnded, TrajectoryLost
from milepost.messages.session import (
    AbandonTrajectory,
    ChatRefused,
    ChatReply,
    ChatTurn,
    ConversationsImported,
    FinishTrajectory,
    ImportConversations,
    OpenSessions,
    SessionsOpened,
    SessionSpec,
    TrajectorySent,
)
from milepost.messages.shared import (
    FinishReason,
    SamplingParams,
    Status,
    Usage,
    VersionSpan,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted, WorkFinished
from milepost.messages.trainer import VersionFailed, VersionPublished
from sim.rows import PROBE_ROW, probe_of, trajectory, weights_of


class Scripted:
    """What every stand-in shares: nothing to assert, nothing to tell a monitor."""

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return []

    def validate(self) -> None:
        pass

    def statistics(self) -> dict[str, object]:
        return {}

    def working_on(self) -> str:
        return ""


@dataclass(slots=True)
class _Episode:
    message: RunEpisode
    turns: int
    ends_as: Status
    reward: float


@dataclass(slots=True)
class Agent(Scripted):
    """Chats a few turns, then gives a verdict; fails now and then."""

    name: str
    random: Random
    failures: float = 0.0
    turns_max: int = 2
    episodes: dict[tuple[str, int], _Episode] = field(default_factory=dict)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(_, RunEpisode() as message):
                return self._run(message)
            case Received(source, CancelEpisode() as message):
                del source
                return self._cancel(message.trajectory_id)
            case Received(_, Drain(), request):
                assert request is not None
                return [Reply(request, Drained(actor=self.name))]
            case Answered(key, _, ChatReply()):
                return self._turn_done(key)
            case Answered(key) | Unanswered(key) if key.startswith("chat/"):
                return self._ended(self._key(key), Status.ABORTED, "the chat was refused", now_s)
            case Unanswered(key) if key.startswith("ended/"):
                # The verdict was not taken: say it again.
                return [Wake(key, now_s + 1.0)]
            case Woken(key):
                return self._say_again(key)
            case _:
                return []

    def _run(self, message: RunEpisode) -> list[Effect]:
        failed = self.random.random() < self.failures
        episode = _Episode(
            message,
            1 + int(self.random.random() * self.turns_max),
            Status.FAILED if failed else Status.COMPLETED,
            float(self.random.random() < 0.5),
        )
        key = (message.trajectory_id, message.attempt)
        self.episodes[key] = episode
        return [self._chat(key, episode)]

    def _chat(self, key: tuple[str, int], episode: _Episode) -> Effect:
        turn = ChatTurn(trajectory_id=key[0], messages=[])
        return Ask(episode.message.session, turn, f"chat/{key[0]}/{key[1]}")

    def _turn_done(self, key: str) -> list[Effect]:
        found = self._key(key)
        episode = self.episodes.get(found)
        if episode is None:
            return []
        episode.turns -= 1
        if episode.turns:
            return [self._chat(found, episode)]
        return self._ended(found, episode.ends_as, "it went wrong", 0.0)

    def _ended(
        self, key: tuple[str, int], status: Status, cause: str, now_s: float
    ) -> list[Effect]:
        del now_s
        episode = self.episodes.pop(key, None)
        if episode is None:
            return []
        good = status is Status.COMPLETED
        ended = EpisodeEnded(
            trajectory_id=key[0],
            attempt=key[1],
            status=status,
            reward=episode.reward if good else None,
            cause="" if good else cause,
            metrics={"solved": episode.reward} if good else {},
        )
        self._unsaid[f"ended/{key[0]}/{key[1]}"] = (episode.message.report_to, ended)
        return self._say_again(f"ended/{key[0]}/{key[1]}")

    _unsaid: dict[str, tuple[str, EpisodeEnded]] = field(default_factory=dict)

    def _say_again(self, key: str) -> list[Effect]:
        to, ended = self._unsaid[key]
        return [Tell(to, ended, key)]

    def _cancel(self, trajectory_id: str) -> list[Effect]:
        effects: list[Effect] = []
        for key in [key for key in self.episodes if key[0] == trajectory_id]:
            effects += self._ended(key, Status.ABORTED, "cancelled", 0.0)
        return effects

    @staticmethod
    def _key(key: str) -> tuple[str, int]:
        _, trajectory_id, attempt = key.split("/")
        return trajectory_id, int(attempt)


@dataclass(slots=True)
class _Row:
    spec: SessionSpec
    spans: list[VersionSpan] = field(default_factory=list)
    length: int = 1


@dataclass(slots=True)
class Session(Scripted):
    """Keeps spans instead of tokens."""

    name: str
    engines: tuple[str, ...]
    version: int = 0
    rows: dict[str, _Row] = field(default_factory=dict)
    _chats: dict[str, tuple[str, int, Request]] = field(default_factory=dict)
    _finishing: dict[str, tuple[Request, FinishTrajectory]] = field(default_factory=dict)
    _imports: dict[str, Request] = field(default_factory=dict)
    _serial: int = 0

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request)
            case Answered(key, _, message) if key in self._chats:
                return self._generated(key, message, now_s)
            case Unanswered(key) if key in self._chats:
                return self._again(key, now_s)
            case Woken(key) if key in self._chats:
                return [self._ask_engine(key)]
            case Taken(key) if key in self._imports:
                return [Reply(self._imports.pop(key), ConversationsImported(num_tokens=1))]
            case Taken(key):
                request, verdict = self._finishing.pop(key)
                sent = TrajectorySent(
                    trajectory_id=verdict.trajectory_id, num_tokens=2, num_sampled_tokens=1
                )
                return [Reply(request, sent)]
            case Unanswered(key) if key in self._finishing:
                request, verdict = self._finishing.pop(key)
                return [Reply(request, self._lost(verdict, "not taken"))]
            case _:
                return []

    def _received(self, source: str, message: Any, request: Request | None) -> list[Effect]:
        match message:
            case OpenSessions():
                assert request is not None
                for spec in message.sessions:
                    old = self.rows.get(spec.trajectory_id)
                    if old is None or old.spec.attempt < spec.attempt:
                        self.rows[spec.trajectory_id] = _Row(spec)
                return [Reply(request, SessionsOpened())]
            case ChatTurn():
                assert request is not None
                row = self.rows.get(message.trajectory_id)
                if row is None:
                    refused = ChatRefused(kind="unknown_session", reason="no such session")
                    return [Reply(request, refused)]
                key = self._key("chat")
                self._chats[key] = (message.trajectory_id, row.spec.attempt, request)
                return [self._ask_engine(key)]
            case FinishTrajectory():
                assert request is not None
                return self._finish(message, request)
            case AbandonTrajectory():
                row = self.rows.get(message.trajectory_id)
                if row is not None and row.spec.attempt <= message.attempt:
                    del self.rows[message.trajectory_id]
            case ImportConversations():
                assert request is not None
                key = self._key("import")
                self._imports[key] = request
                rows = tuple(
                    trajectory(f"{group}.0", spans=(), reward=0.0) for group in message.group_ids
                )
                return [
                    Tell(
                        message.deliver_to,
                        TrajectoriesFinished(trajectories=rows),
                        key,
                        confirm=True,
                    )
                ]
            case Drain():
                assert request is not None
                return [Reply(request, Drained(actor=self.name))]
            case VersionPublished():
                self.version = max(self.version, message.version)
            case PeerRestarted():
                pass
            case _:
                raise TypeError(f"{self.name} was told {message} by {source}")
        return []

    def _key(self, kind: str) -> str:
        self._serial += 1
        return f"{kind}/{self._serial}"

    def _ask_engine(self, key: str) -> Effect:
        trajectory_id, _, _ = self._chats[key]
        engine = self.engines[sum(map(ord, trajectory_id)) % len(self.engines)]
        generate = Generate(
            request_id=key,
            session_id=trajectory_id,
            token_ids=Bulk("int32", (0,), b""),
            sampling=SamplingParams(),
            version_min=self.version,
        )
        return Ask(engine, generate, key)

    def _generated(self, key: str, message: Any, now_s: float) -> list[Effect]:
        if isinstance(message, GenerateRefused):
            return self._again(key, now_s)
        trajectory_id, attempt, request = self._chats.pop(key)
        row = self.rows.get(trajectory_id)
        if row is None or row.spec.attempt != attempt:
            return [Reply(request, ChatRefused(kind="closed", reason="superseded"))]
        for span in message.spans:
            start, end = row.length + span.start, row.length + span.end
            row.spans.append(VersionSpan(start=start, end=end, version=span.version))
        row.length += message.token_ids.shape[0]
        reply = ChatReply(
            message={"role": "assistant", "content": ""},
            finish_reason=FinishReason.STOP,
            usage=Usage(prompt_tokens=0, completion_tokens=1),
            versions=(),
        )
        return [Reply(request, reply)]

    def _again(self, key: str, now_s: float) -> list[Effect]:
        return [Wake(key, now_s + 0.5)]

    def _finish(self, verdict: FinishTrajectory, request: Request) -> list[Effect]:
        row = self.rows.get(verdict.trajectory_id)
        if row is None or row.spec.attempt != verdict.attempt or not row.spans:
            return [Reply(request, self._lost(verdict, "no such session"))]
        del self.rows[verdict.trajectory_id]
        key = self._key("deliver")
        self._finishing[key] = (request, verdict)
        finished = trajectory(
            verdict.trajectory_id,
            spans=tuple(row.spans),
            reward=verdict.reward,
            status=verdict.status,
            metrics=verdict.metrics,
        )
        return [
            Tell(row.spec.deliver_to, TrajectoryFinished(trajectory=finished), key, confirm=True)
        ]

    @staticmethod
    def _lost(verdict: FinishTrajectory, cause: str) -> TrajectoryLost:
        return TrajectoryLost(
            trajectory_id=verdict.trajectory_id, attempt=verdict.attempt, cause=cause
        )


@dataclass(slots=True)
class Engine(Scripted):
    """Serves numbers. A reply takes a while, and a switch in between shows in its spans."""

    name: str
    random: Random
    lies: bool = False
    """True: confirms a version that it does not serve."""
    version: int | None = None
    staged: dict[int, dict[int, float]] = field(default_factory=dict)
    _generating: dict[str, tuple[Request, int]] = field(default_factory=dict)
    _serial: int = 0

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return [Tell("publisher", EngineReady(engine=self.name))]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(_, Generate() as message, request):
                assert request is not None
                if self.version is None or self.version < message.version_min:
                    refused = GenerateRefused(request_id="", reason="no version yet", retry=True)
                    return [Reply(request, refused)]
                self._serial += 1
                key = f"generate/{self._serial}"
                self._generating[key] = (request, self.version)
                return [Wake(key, now_s + 0.01 + self.random.random())]
            case Woken(key):
                return [self._generated(*self._generating.pop(key))]
            case Received(_, message, request) if request is not None:
                return [Reply(request, self._epoch(message))]
            case _:
                return []

    def _generated(self, request: Request, started: int) -> Effect:
        assert self.version is not None
        spans = [VersionSpan(start=0, end=1, version=started)]
        if self.version != started:
            spans.append(VersionSpan(start=1, end=2, version=self.version))
        count = len(spans)
        return Reply(
            request,
            Generated(
                request_id="",
                token_ids=Bulk("int32", (count,), bytes(4 * count)),
                logprobs=Bulk("float32", (count,), bytes(4 * count)),
                spans=tuple(spans),
                finish_reason=FinishReason.STOP,
                cached_tokens=0,
            ),
        )

    def _epoch(self, message: Any) -> Any:
        match message:
            case PrepareEpoch():
                self.staged = {message.version: {}}
                return EpochAnswer(version=message.version, ok=True)
            case WeightBucket():
                if message.version not in self.staged:
                    return EpochAnswer(version=message.version, ok=False, reason="not prepared")
                (value,) = struct.unpack("<f", message.tensors[0].data)
                self.staged[message.version][message.index] = value
                return EpochAnswer(version=message.version, ok=True)
            case ActivateEpoch():
                values = self.staged.get(message.version, {})
                if list(values.values()) != [message.version] * 2:
                    return EpochAnswer(version=message.version, ok=False, reason="not whole")
                if not self.lies:
                    self.version = message.version
                self.staged = {}
                return EpochConfirmed(
                    version=message.version, digest=message.digest, pause_s=0.1, num_in_flight=0
                )
            case AbortEpoch():
                self.staged.pop(message.version, None)
                return EpochAnswer(version=message.version, ok=True)
            case Score():
                if self.version is None:
                    return GenerateRefused(request_id="", reason="no version yet", retry=True)
                served = self.version
                version = served + 1 if self.lies else served
                return Scored(logprobs=(probe_of(served),), version=version)
            case Drain():
                return Drained(actor=self.name)
            case _:
                raise TypeError(f"{self.name} was told {message}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the trainer saved: how many batches, and of which groups."""

    version: int
    trained: tuple[str, ...]


@dataclass(slots=True)
class Trainer(Scripted):
    """One rank. Asks for the next batch while one is trained; rank 0 publishes, saves, finishes."""

    rank: int
    world_size: int
    steps: int
    sync: bool
    publish_every: int
    checkpoint_every: int
    has_publisher: bool
    save: Callable[[Checkpoint], None]
    on_batch: Callable[[int, Batch, int | None], None]
    version: int = 0
    """Batches trained."""
    trained: list[str] = field(default_factory=list)
    published: int | None = None
    step_s: float = 0.5
    _asked: int = -1
    """Newest step asked for."""
    _training: Batch | None = None
    _next: Batch | None = None
    _waits_for_version: bool = False
    _published_last: int = -1
    _last_trained: StepTrained | None = None

    @property
    def name(self) -> str:
        return f"trainer-{self.rank}"

    def start(self, now_s: float) -> list[Effect]:
        effects = self._publish() if self.rank == 0 and self.has_publisher else []
        if self.version == self.steps:
            return effects + self._finished()
        return effects + self._ask(self.version) + self._go_on(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(_, VersionPublished() as message):
                self.published = message.version
            case Received(_, VersionFailed() as message):
                # Only the newest version is worth another try.
                return self._publish() if message.version == self._published_last else []
            case Received(_, PeerRestarted(actor="buffer")) if self._last_trained:
                return [Tell("buffer", self._last_trained)]
            case Received(_, Drain(), request):
                assert request is not None
                return [Reply(request, Drained(actor=self.name))]
            case Answered(_, _, Batch() as batch):
                self._next = batch
            case Unanswered(key) if key.startswith("batch/"):
                return self._ask(int(key.partition("/")[2]))
            case Woken():
                effects = self._stepped()
            case _:
                pass
        return effects + self._go_on(now_s)

    def _ask(self, step: int) -> list[Effect]:
        self._asked = step
        request = BatchRequested(
            step=step, rank=self.rank, world_size=self.world_size, version=self.version
        )
        return [Ask("buffer", request, f"batch/{step}", deadline_s=1e6)]

    def _publish(self) -> list[Effect]:
        self._published_last = self.version
        ready = VersionReady(
            version=self.version,
            tensors=(TensorSpec(name="w", dtype="float32", shape=(1,)),),
            num_buckets=2,
            digest=f"digest of {self.version}",
            final=self.version == self.steps,
            probe_rows=(PROBE_ROW,),
            probe_logprobs=(probe_of(self.version),),
        )
        effects: list[Effect] = [Tell("publisher", ready)]
        for index in range(2):
            bucket = BucketReady(
                version=self.version, index=index, names=("w",), tensors=(weights_of(self.version),)
            )
            effects.append(Tell("publisher", bucket))
        return effects

    def _go_on(self, now_s: float) -> list[Effect]:
        """Train what is here, and ask for what comes next."""
        if self._waits_for_version and self.published == self.version:
            self._waits_for_version = False
        if self._waits_for_version:
            return []
        effects: list[Effect] = []
        if self._training is None and self._next is not None:
            self._training, self._next = self._next, None
            self.on_batch(self.rank, self._training, self.published)
            effects.append(Wake("trained", now_s + self.step_s))
        ahead = self.version + (self._training is not None)
        if self._next is None and self._asked < ahead < self.steps:
            is_ahead = self._training is not None
            if not (is_ahead and self.sync):
                effects += self._ask(ahead)
        return effects

    def _stepped(self) -> list[Effect]:
        assert self._training is not None
        batch, self._training = self._training, None
        self.version += 1
        is_last = self.version == self.steps
        publishes = self.has_publisher and (is_last or self.version % self.publish_every == 0)
        self._waits_for_version = self.sync and publishes and not is_last
        if self.rank:
            return []
        self.trained.extend(batch.group_ids)
        self._last_trained = StepTrained(
            step=batch.step, version=self.version, group_ids=batch.group_ids
        )
        effects: list[Effect] = [Tell("buffer", self._last_trained)]
        if publishes:
            effects += self._publish()
        every = self.checkpoint_every
        if is_last or (every and self.version % every == 0):
            self.save(Checkpoint(self.version, tuple(self.trained)))
            saved = CheckpointSaved(step=self.version, folder="")
            effects += [Tell("buffer", saved), Tell("rollout", saved)]
        return effects + (self._finished() if is_last else [])

    def _finished(self) -> list[Effect]:
        return [] if self.rank else [Tell("supervisor", WorkFinished(actor=self.name))]


@dataclass(slots=True)
class Supervisor(Scripted):
    """Counts who is done."""

    finished: set[str] = field(default_factory=set)
    events: list[Any] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        match event:
            case Received(_, WorkFinished() as message):
                self.finished.add(message.actor)
            case Received(_, message):
                self.events.append(message)
            case Answered(_, _, Drained() as message):
                self.drained.add(message.actor)
            case _:
                pass
        return []
