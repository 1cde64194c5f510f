"""Small scripted actors that follow the messages of the ones with a model inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from sim.rows import check_weights, ids, probe_row, trajectory

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
    TrajectoriesFinished,
    TrajectoryFinished,
)
from milepost.messages.engine import (
    Generate,
    Generated,
    GenerateRefused,
)
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
    Purpose,
    SamplingParams,
    Status,
    Usage,
    VersionSpan,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished
from milepost.messages.trajectory import Trajectory

SEEN = "tokens_seen"
"""Metric of an agent: sampled tokens that its reward is about."""


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
    generation: int = 0
    """The last reply that came."""
    tokens_seen: int = 0


@dataclass(slots=True)
class Agent(Scripted):
    """Chats a few turns, then gives a verdict; fails now and then."""

    name: str
    random: Random
    failures: float = 0.0
    impatience: float = 0.0
    """Share of turns that it waits for only so long, once it has a reply to be judged by."""
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
            case Answered(key, _, ChatReply() as reply):
                return self._turn_done(key, reply, now_s)
            case Answered(key) | Unanswered(key) if key.startswith("chat/"):
                return self._ended(self._key(key), Status.ABORTED, "the chat was refused", now_s)
            case Unanswered(key) if key.startswith("ended/"):
                # The verdict was not taken: say it again.
                return [Wake(key, now_s + 1.0)]
            case Woken(key) if key.startswith("patience/"):
                return self._ended(self._key(key), Status.COMPLETED, "", now_s)
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
        turn = ChatTurn(trajectory_id=key[0], messages=[], attempt=key[1])
        return Ask(episode.message.session, turn, f"chat/{key[0]}/{key[1]}")

    def _turn_done(self, key: str, reply: ChatReply, now_s: float) -> list[Effect]:
        found = self._key(key)
        episode = self.episodes.get(found)
        if episode is None:
            return []
        episode.turns -= 1
        episode.generation = reply.generation
        episode.tokens_seen += reply.usage.completion_tokens
        if episode.turns:
            chat = self._chat(found, episode)
            if self.impatience and self.random.random() < self.impatience:
                return [chat, Wake(f"patience/{found[0]}/{found[1]}", now_s + 0.1)]
            return [chat]
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
            metrics=self._metrics(episode) if good else {},
            generation=episode.generation,
        )
        self._unsaid[f"ended/{key[0]}/{key[1]}"] = (episode.message.report_to, ended)
        return self._say_again(f"ended/{key[0]}/{key[1]}")

    @staticmethod
    def _metrics(episode: _Episode) -> dict[str, float]:
        return {"solved": episode.reward, SEEN: float(episode.tokens_seen)}

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
    turns: list[tuple[VersionSpan, ...]] = field(default_factory=list)
    length: int = 1
    probed: tuple[str, Generated] | None = None
    """Of the canary's turn: the engine, and what it said."""

    @property
    def spans(self) -> tuple[VersionSpan, ...]:
        return tuple(span for turn in self.turns for span in turn)


@dataclass(slots=True)
class Session(Scripted):
    """Keeps spans instead of tokens."""

    name: str
    engines: tuple[str, ...]
    evaluation: tuple[str, ...] = ()
    """Engines that serve held-out episodes; without any, the others do."""
    version: int = 0
    cuts_unseen: bool = True
    rows: dict[str, _Row] = field(default_factory=dict)
    _chats: dict[str, tuple[str, int, Request]] = field(default_factory=dict)
    _patience_s: dict[str, float] = field(default_factory=dict)
    """Chat that was refused -> seconds until it is asked again; each time twice as long."""
    _finishing: dict[str, tuple[Request, FinishTrajectory]] = field(default_factory=dict)
    _imports: dict[str, Request] = field(default_factory=dict)
    _serial: int = 0

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request)
            case Answered(key, engine, message) if key in self._chats:
                return self._generated(key, engine, message, now_s)
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
                if row.spec.attempt != message.attempt:
                    refused = ChatRefused(kind="closed", reason="open for another attempt")
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
        row = self.rows.get(trajectory_id)
        spec = row.spec if row else None
        is_held_out = spec is not None and spec.purpose is Purpose.EVALUATE
        engines = self.evaluation if is_held_out and self.evaluation else self.engines
        engine = engines[sum(map(ord, trajectory_id)) % len(engines)]
        oldest = spec.version_min if spec else None
        generate = Generate(
            request_id=f"{trajectory_id}/{key}",
            session_id=trajectory_id,
            token_ids=ids(0),
            sampling=spec.sampling if spec else SamplingParams(),
            version_min=self.version if oldest is None else oldest,
        )
        return Ask(engine, generate, key)

    def _generated(self, key: str, engine: str, message: Any, now_s: float) -> list[Effect]:
        if isinstance(message, GenerateRefused) or message.finish_reason is FinishReason.ABORT:
            return self._again(key, now_s)
        check_weights(engine, message)
        trajectory_id, attempt, request = self._chats.pop(key)
        self._patience_s.pop(key, None)
        row = self.rows.get(trajectory_id)
        if row is None or row.spec.attempt != attempt:
            return [Reply(request, ChatRefused(kind="closed", reason="superseded"))]
        at = row.length
        row.turns.append(
            tuple(
                VersionSpan(start=at + span.start, end=at + span.end, version=span.version)
                for span in message.spans
            )
        )
        row.length += message.token_ids.shape[0]
        if row.spec.purpose is Purpose.PROBE:
            row.probed = engine, message
        reply = ChatReply(
            message={"role": "assistant", "content": ""},
            finish_reason=FinishReason.STOP,
            usage=Usage(prompt_tokens=0, completion_tokens=message.token_ids.shape[0]),
            versions=(),
            generation=len(row.turns),
        )
        return [Reply(request, reply)]

    def _again(self, key: str, now_s: float) -> list[Effect]:
        wait_s = self._patience_s.get(key, 0.5)
        self._patience_s[key] = min(2.0 * wait_s, 8.0)
        return [Wake(key, now_s + wait_s)]

    def _finish(self, verdict: FinishTrajectory, request: Request) -> list[Effect]:
        row = self.rows.get(verdict.trajectory_id)
        if row is None or row.spec.attempt != verdict.attempt or not row.spans:
            return [Reply(request, self._lost(verdict, "no such session"))]
        del self.rows[verdict.trajectory_id]
        if self.cuts_unseen and verdict.generation is not None:
            del row.turns[verdict.generation :]
        key = self._key("deliver")
        self._finishing[key] = (request, verdict)
        finished = self._finished(row, verdict)
        return [
            Tell(row.spec.deliver_to, TrajectoryFinished(trajectory=finished), key, confirm=True)
        ]

    def _finished(self, row: _Row, verdict: FinishTrajectory) -> Trajectory:
        if row.probed is not None:
            return probe_row(verdict.trajectory_id, *row.probed, prompt=1)
        return trajectory(
            verdict.trajectory_id,
            spans=row.spans,
            reward=verdict.reward,
            status=verdict.status,
            metrics=verdict.metrics,
        )

    @staticmethod
    def _lost(verdict: FinishTrajectory, cause: str) -> TrajectoryLost:
        return TrajectoryLost(
            trajectory_id=verdict.trajectory_id, attempt=verdict.attempt, cause=cause
        )
