"""Runs single episodes of one agent on the scripted session, and looks at how they end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from msgspec.structs import replace

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.conformance.script import Conversation, Say, Script, ScriptedSession
from milepost.actors.agent.core import RunCode, StopCode
from milepost.actors.agent.episodes import GRACE_S, Episodes, Rewards
from milepost.configs.topology import Topology
from milepost.messages.agent import RunEpisode
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.shared import EpisodeLimits, Prompt, Purpose

if TYPE_CHECKING:
    from milepost.messages.bus import Incoming
    from milepost.messages.shared import Message

EPISODE_S: Final = 60.0
"""No scripted answer takes time, so an episode that takes longer than this waits for something."""
TURNS_MAX: Final = 8
AT_ONCE: Final = 512
LOOK_S: Final = 0.01
SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds of waiting for one, and time slices."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One episode: the run's verdict, and what its session saw."""

    verdict: EpisodeEnded
    conversation: Conversation
    seconds: float
    """From its order to its verdict."""
    is_held_open: bool = False
    """A request that is never answered outlived the episode, and the grace that it had."""

    @property
    def has_reward(self) -> bool:
        """Completed or truncated."""
        return self.verdict.reward is not None

    def told(self) -> str:
        """Status and cause, for people."""
        cause = f": {self.verdict.cause}" if self.verdict.cause else ""
        return f"{self.verdict.status.value}{cause}"


class Session(Protocol):
    """What answers the agent's chats as a script says."""

    def open(self, name: str, script: Script, limits: EpisodeLimits) -> Conversation:
        """A conversation of this episode, within these bounds."""
        ...

    def close(self, name: str) -> None:
        """Its verdict is there."""
        ...

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        """As of `Bus`."""
        ...

    def tell(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[None]:
        """As of `Bus`."""
        ...


@dataclass(slots=True)
class Bench:
    """The agent under test.

    Attributes:
        agent: started.
        prompts: episodes take turns with them.
        rewards: the run's reward function.
        topology: limits.
        session: plays the model.
        at_once: most episodes that the agent is given at once.
        is_elsewhere: its code runs in processes of its own, and cannot hold the event loop.
    """

    agent: Agent
    prompts: list[Prompt]
    rewards: Rewards
    topology: Topology
    session: Session = field(default_factory=ScriptedSession)
    at_once: int = AT_ONCE
    is_elsewhere: bool = False
    faults: list[str] = field(default_factory=list)
    """Requests that a session refuses, from all episodes so far, each once."""
    _numbers: count[int] = field(default_factory=count)

    async def episode(
        self,
        script: Script,
        *,
        number: int = 0,
        seconds_max: float = EPISODE_S,
        turns_max: int = TURNS_MAX,
        stop_when_silent: bool = False,
    ) -> Ended:
        """Run one episode to its end.

        Args:
            script: what the model does.
            number: which prompt.
            seconds_max: limit of the episode.
            turns_max: limit of the episode.
            stop_when_silent: cancel it, as the run does, at the first chat without an answer.
        """
        name = f"check.{next(self._numbers)}"
        limits = replace(self._limits, seconds_max=seconds_max, turns_max=turns_max)
        conversation = self.session.open(name, script, limits)
        episodes = Episodes(self.agent, self.session, self.rewards)
        order = self._order(name, number, limits, conversation.address)
        work = RunCode(name, order)
        started_s = time.monotonic()
        running = asyncio.create_task(episodes.perform(work), name=name)
        if stop_when_silent:
            asked = asyncio.create_task(conversation.asked.wait())
            await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            await episodes.perform(StopCode(f"stop/{name}", name, "the check stops it"))
        verdict = await running
        seconds = time.monotonic() - started_s
        assert isinstance(verdict, EpisodeEnded)
        # Closing the session would end the request of whoever was left behind.
        is_held_open = bool(conversation.address) and not await _is_let_go(conversation)
        self.session.close(name)
        self.faults += [each for each in conversation.faults if each not in self.faults]
        return Ended(verdict, conversation, seconds, is_held_open)

    @property
    def _limits(self) -> EpisodeLimits:
        limits = self.topology.limits
        return EpisodeLimits(reply_tokens_max=limits.reply_tokens_max, tokens_max=limits.tokens_max)

    def _order(self, name: str, number: int, limits: EpisodeLimits, address: str) -> RunEpisode:
        return RunEpisode(
            trajectory_id=name,
            group_id="check",
            attempt=0,
            prompt=self.prompts[number % len(self.prompts)],
            limits=limits,
            purpose=Purpose.TRAIN,
            seed=7 + number,
            session="session-0",
            report_to="rollout",
            address=address,
        )


async def _is_let_go(conversation: Conversation) -> bool:
    if not conversation.asked.is_set():
        return True
    stopped = asyncio.create_task(conversation.stopped.wait())
    await asyncio.wait({stopped}, timeout=GRACE_S)
    stopped.cancel()
    return conversation.stopped.is_set()


class LoopWatch:
    """Measures how long the event loop was held by somebody; `async with LoopWatch() as watch`."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        self._task = asyncio.create_task(self._look(), name="loop watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _look(self) -> None:
        while True:
            before_s = time.monotonic() - _waited_s()
            await asyncio.sleep(LOOK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - _waited_s() - before_s - LOOK_S)


def _waited_s() -> float:
    """How long this thread was ready and got no processor: a busy machine is no agent's fault."""
    return int(SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9


def text_only(turn: int, request: object) -> Say:
    """A model that says something, and calls nothing."""
    del request
    return Say(text=f"scripted answer {turn}")
