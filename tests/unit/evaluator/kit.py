"""An evaluator alone; sessions open at once, agents and trajectories are played by the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.rows import trajectory

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
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.records import Past, Record, WentOn
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.evaluator.works import SaveTranscripts, WriteRecord
from milepost.messages.agent import RunEpisode
from milepost.messages.buffer import TrajectoryFinished
from milepost.messages.publisher import HoldVersion, VersionHeld
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import OpenSessions, SessionsOpened
from milepost.messages.shared import (
    EpisodeLimits,
    Message,
    Prompt,
    SamplingParams,
    Status,
    VersionSpan,
)
from milepost.messages.trainer import VersionPublished

PROMPTS = [
    Prompt(
        prompt_id=f"q{index}", messages=[], metadata={"category": "odd" if index % 2 else "even"}
    )
    for index in range(3)
]


def settings(**fields: Any) -> EvaluatorSettings:
    """Sampled and greedy, three prompts, no more than four episodes at once."""
    given: dict[str, Any] = {
        "seed": 0,
        "modes": {"sampled": SamplingParams(), "greedy": SamplingParams(temperature=0.0)},
        "limits": EpisodeLimits(),
        "agents": {"agent-0": 4},
        "sessions": ("session-0",),
        "in_flight_max": 4,
        "at_start": True,
        "at_end": True,
        "every_versions": 0,
        "deadline_s": 100.0,
        "transcripts": 1,
        "success_metric": "solved",
        "resumed_version": 0,
        "waits_for_rollout": True,
    }
    return EvaluatorSettings(**(given | fields))


@dataclass
class Play:
    """Keeps what was said, by type."""

    given: EvaluatorSettings
    now_s: float = 0.0
    said: list[Message] = field(default_factory=list)
    asked: dict[str, Ask] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)
    saved: list[SaveTranscripts] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    running: dict[str, RunEpisode] = field(default_factory=dict)
    serving: int = 0
    answers_holds: bool = True
    oldest_versions: set[int | None] = field(default_factory=set)
    """That sessions were opened with."""
    journal: list[Record] = field(default_factory=list)
    """Of this life and those before."""

    def __post_init__(self) -> None:
        self.journal = self.journal or [WentOn(version=self.given.resumed_version)]
        self.core = Evaluator(self.given, PROMPTS, Past.of(self.journal))
        self.carry_out(self.core.start(0.0))

    def hear(self, message: Message, source: str = "supervisor") -> None:
        self.feed(Received(source, message))

    def ask(self, message: Message) -> None:
        self.feed(Received("supervisor", message, Request("supervisor", 1)))

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(_, RunEpisode() as message):
                    self.running[message.trajectory_id] = message
                case Tell(_, message, key):
                    self.said.append(message)
                    if effect.confirm:
                        self.feed(Taken(key))
                case Ask():
                    self.asked[effect.key] = effect
                case Wake(key, at_s):
                    self.wakes[key] = at_s
                case Reply(_, message):
                    self.replies.append(message)
                case WriteRecord():
                    self.journal.append(effect.record)
                    self.feed(WorkDone(effect.key, None))
                case SaveTranscripts():
                    self.saved.append(effect)
                    self.feed(WorkDone(effect.key, None))
                case _:
                    raise TypeError(effect)
        self.answer()

    def answer(self) -> None:
        """Sessions open, and the publisher holds the version it serves."""
        answerable = (OpenSessions, *((HoldVersion,) if self.answers_holds else ()))
        while keys := [
            key for key, ask in self.asked.items() if isinstance(ask.message, answerable)
        ]:
            ask = self.asked.pop(keys[0])
            opened = isinstance(ask.message, OpenSessions)
            if isinstance(ask.message, OpenSessions):
                self.oldest_versions |= {each.version_min for each in ask.message.sessions}
            answer = SessionsOpened() if opened else VersionHeld(version=self.serving)
            self.feed(Answered(keys[0], ask.to, answer))

    def publish(self, version: int, *, final: bool = False) -> None:
        self.serving = version
        self.hear_version(version, final=final)

    def hear_version(self, version: int, *, final: bool = False) -> None:
        """The version is published; the engines that measure keep theirs."""
        self.hear(VersionPublished(version=version, final=final), "publisher")

    def wake(self, key: str) -> None:
        self.now_s = max(self.now_s, self.wakes.pop(key))
        self.feed(Woken(key))

    def end(self, trajectory_id: str, status: Status = Status.COMPLETED, **fields: Any) -> None:
        """The agent's verdict, and the row if there is one."""
        episode = self.running.pop(trajectory_id)
        good = status in (Status.COMPLETED, Status.TRUNCATED)
        version = fields.pop("version", self.serving)
        reward = fields.pop("reward", 1.0)
        metrics = fields.pop("metrics", {"solved": reward})
        ended = EpisodeEnded(
            trajectory_id=trajectory_id,
            attempt=episode.attempt,
            status=status,
            reward=reward if good else None,
            metrics=metrics if good else {},
            info={"messages": [{"role": "assistant", "content": trajectory_id}]},
        )
        self.hear(ended, "agent-0")
        if good:
            row = trajectory(
                trajectory_id,
                spans=(VersionSpan(start=1, end=3, version=version),),
                reward=reward,
                status=status,
                metrics=metrics,
            )
            self.hear(TrajectoryFinished(trajectory=row), "session-0")

    def end_all(self, reward: float = 1.0) -> None:
        while self.running:
            self.end(next(iter(self.running)), reward=reward)

    def take(self, kind: type[Message]) -> list[Any]:
        taken = [message for message in self.said if isinstance(message, kind)]
        self.said = [message for message in self.said if not isinstance(message, kind)]
        return taken
