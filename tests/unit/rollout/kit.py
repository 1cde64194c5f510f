"""A rollout actor alone, played message by message; sessions answer at once unless told not to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Tell,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.messages.agent import RunEpisode
from milepost.messages.rollout import CreditsGranted, EpisodeEnded, GroupStored, StoreRecovered
from milepost.messages.session import (
    FinishTrajectory,
    OpenSessions,
    SessionsOpened,
    TrajectorySent,
)
from milepost.messages.shared import EpisodeLimits, Message, Prompt, SamplingParams, Status

PROMPTS = [Prompt(prompt_id=f"p{index}", messages=[]) for index in range(4)]


def settings(**fields: Any) -> RolloutSettings:
    """Groups of two, a budget of four trajectories, one agent with room for three."""
    given: dict[str, Any] = {
        "seed": 0,
        "group_size": 2,
        "groups_per_step": 2,
        "in_flight_max": 4,
        "refill": "sample",
        "retries_max": 1,
        "failed": "retry",
        "lease_s": 10.0,
        "sampling": SamplingParams(),
        "limits": EpisodeLimits(seconds_max=100.0),
        "agents": {"agent-0": 3},
        "sessions": ("session-0",),
        "waits_for": frozenset({"store"}),
        "checkpoints_named": 2,
    }
    return RolloutSettings(**(given | fields))


@dataclass
class Play:
    """Keeps what was said, by type; asserts every invariant after every event."""

    given: RolloutSettings
    ledger: Ledger = field(default_factory=Ledger)
    now_s: float = 0.0
    said: list[tuple[str, Message]] = field(default_factory=list)
    asked: dict[str, Ask] = field(default_factory=dict)
    wakes: dict[str, float] = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)
    failed: str = ""
    replies: list[Message] = field(default_factory=list)
    answers: bool = True

    def __post_init__(self) -> None:
        self.core = Rollout.of(self.given, PromptOrder(PROMPTS, 0, shuffle=False), self.ledger)
        self.carry_out(self.core.start(self.now_s))

    def begin(self, *, granted: int = 100) -> Play:
        """The buffer holds nothing and grants this many trajectories."""
        self.hear("buffer", StoreRecovered(stored=(), trained={}, groups_spent=0))
        self.hear("buffer", CreditsGranted(samples_total=granted))
        return self

    def hear(self, source: str, message: Message, request: Request | None = None) -> None:
        self.feed(Received(source, message, request))

    def feed(self, event: Event) -> None:
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(to, message):
                    self.said.append((to, message))
                case Ask():
                    self.asked[effect.key] = effect
                case Wake(key, at_s):
                    self.wakes[key] = at_s
                case Reply(_, message):
                    self.replies.append(message)
                case Fail(reason):
                    self.failed = self.failed or reason
                case _:
                    self.works.append(effect)
                    self.feed(WorkDone(effect.key, None))
        if self.answers:
            self.answer_all()

    def answer_all(self) -> None:
        """Sessions open and deliver whatever they were asked to."""
        while self.asked:
            key = next(iter(self.asked))
            ask = self.asked.pop(key)
            answers: dict[type[Message], Message] = {
                OpenSessions: SessionsOpened(),
                FinishTrajectory: TrajectorySent(
                    trajectory_id="", num_tokens=9, num_sampled_tokens=4
                ),
            }
            self.feed(Answered(key, ask.to, answers[type(ask.message)]))

    def wake(self, key: str) -> None:
        """Time goes on until this timer."""
        self.now_s = max(self.now_s, self.wakes.pop(key))
        self.feed(Woken(key))

    def wake_all(self) -> None:
        """Every timer that is set, in order of time."""
        for key in sorted(self.wakes, key=lambda key: self.wakes[key]):
            self.wake(key)

    def take(self, kind: type[Message]) -> list[Any]:
        """What was said of this type since the last look."""
        taken = [message for _, message in self.said if isinstance(message, kind)]
        self.said = [pair for pair in self.said if not isinstance(pair[1], kind)]
        return taken

    def running(self) -> list[tuple[str, int]]:
        """Episodes sent out since the last look: trajectory and attempt."""
        return [(one.trajectory_id, one.attempt) for one in self.take(RunEpisode)]

    def end(self, trajectory_id: str, attempt: int = 0, *, good: bool = True) -> None:
        """The agent's verdict."""
        ended = EpisodeEnded(
            trajectory_id=trajectory_id,
            attempt=attempt,
            status=Status.COMPLETED if good else Status.FAILED,
            reward=1.0 if good else None,
            cause="" if good else "it broke",
        )
        self.hear("agent-0", ended)

    def store(self, group_id: str) -> None:
        """The buffer has the whole group."""
        self.hear("buffer", GroupStored(group_id=group_id, num_tokens=9))
