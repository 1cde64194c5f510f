"""Runs the user's code: one task for each episode, with its time limit and its reward."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from milepost.actors.agent.core import CollectAlive, RunCode, StopCode, TakePart
from milepost.actors.agent.episode import Episode
from milepost.actors.agent.errors import ServiceFailed
from milepost.actors.agent.outcome import (
    Ending,
    fault_of,
    judge,
    may_have_reward,
    read_ending,
    tell_error,
    truncated_by,
)
from milepost.actors.agent.reward import (
    RewardFailed,
    RewardFunction,
    RewardInput,
    RewardResult,
    await_result,
)
from milepost.messages.bus import BusClosed, Unanswered
from milepost.messages.session import (
    ChatRefused,
    ClientGone,
    ConversationAsked,
    ConversationTold,
)
from milepost.messages.shared import Status

if TYPE_CHECKING:
    from milepost.actors.agent.agent import Agent
    from milepost.actors.agent.episode import Record
    from milepost.actors.agent.reply import Parts
    from milepost.actors.agent.reward_pool import RewardPool
    from milepost.actors.effects import Work
    from milepost.messages.agent import ChatPart, RunEpisode
    from milepost.messages.bus import Incoming
    from milepost.messages.rollout import EpisodeEnded
    from milepost.messages.session import ChatTurn
    from milepost.messages.shared import Message

GRACE_S: Final = 5.0
"""What cancelled code gets for its `finally` blocks before it is left behind."""
CONVERSATION_S: Final = 30.0
"""A session that does not answer a small question for so long is dead, or as good as dead."""
MARGIN_S: Final = 5.0
"""A chat outlives the episode's time by this, so that time ends episodes, not questions."""

log = logging.getLogger(__name__)


class Asks(Protocol):
    """What an episode needs of the bus."""

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        """As of `Bus`."""
        ...

    def tell(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[None]:
        """As of `Bus`."""
        ...


class Rewards:
    """The run's reward function: awaited here, or called in a worker process.

    Args:
        function: an asynchronous one, or None.
        pool: of a synchronous one, or None. Both None: agents report their rewards.
        deadline_s: of one call.
    """

    def __init__(
        self, function: RewardFunction | None, pool: RewardPool | None, deadline_s: float
    ) -> None:
        self._function = function
        self._pool = pool
        self._deadline_s = deadline_s

    async def score(self, given: RewardInput) -> RewardResult | None:
        """The reward; None when the run has no function for it.

        Raises:
            RewardFailed: there is none; says why.
        """
        if self._pool is not None:
            return await self._pool.score(given)
        if self._function is None:
            return None
        task = asyncio.create_task(await_result(self._function(given)), name="reward")
        done, _ = await asyncio.wait({task}, timeout=self._deadline_s)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
            raise RewardFailed(f"the reward function took longer than {self._deadline_s} s")
        if task.cancelled():
            raise RewardFailed("the reward function raised CancelledError: what it awaited was")
        if (error := task.exception()) is not None:
            raise RewardFailed(f"the reward function raised {tell_error(error)}")
        return task.result()


class Episodes:
    """All episodes that run on this host.

    Args:
        agent: the user's.
        bus: reaches sessions.
        rewards: the run's reward function.
    """

    def __init__(self, agent: Agent, bus: Asks, rewards: Rewards) -> None:
        self._agent = agent
        self._bus = bus
        self._rewards = rewards
        self._stops: dict[str, asyncio.Future[str]] = {}
        """For each running episode, done with the reason when the run stops it."""
        self._alive: set[str] = set()
        self._left_behind: set[asyncio.Task[None]] = set()
        """Code that was cancelled and goes on; it can reach no session any more."""
        self._streams = Streams()

    async def perform(self, work: Work) -> object:
        """Carry out a work of the agent core."""
        match work:
            case RunCode():
                return await self._run(work)
            case StopCode(run_key=run_key, reason=reason):
                stop = self._stops.get(run_key)
                if stop is not None and not stop.done():
                    stop.set_result(reason)
                return None
            case TakePart(part=part):
                self._streams.take(part)
                return None
            case CollectAlive():
                alive, self._alive = tuple(sorted(self._alive)), set()
                return alive
            case _:
                raise TypeError(f"an agent has no hands for {work}")

    async def _run(self, work: RunCode) -> EpisodeEnded:
        order, key = work.order, work.key
        started_s = time.monotonic()
        ends_s = started_s + order.limits.seconds_max + MARGIN_S
        line = BusLine(self._bus, order, ends_s, self._streams)
        line.on_answer = lambda: self._alive.add(order.trajectory_id)
        episode = Episode(order, line)
        try:
            ending = await self._run_code(key, episode)
        finally:
            line.close()
        record = episode.record
        if order.address and may_have_reward(ending, record):
            await self._ask_conversation(order, record)
        result, reward_fault = None, ""
        if fault_of(ending, record) is None:
            try:
                result = await self._rewards.score(_reward_input(episode, ending))
            except RewardFailed as error:
                reward_fault = str(error)
                log.warning("%s has no reward: %s", key, reward_fault)
        seconds = time.monotonic() - started_s
        return judge(order, ending, record, seconds, result=result, reward_fault=reward_fault)

    async def _ask_conversation(self, order: RunEpisode, record: Record) -> None:
        """Its session has an HTTP door: what was said through it, the session alone knows."""
        asked = ConversationAsked(
            trajectory_id=order.trajectory_id,
            attempt=order.attempt,
            known=record.generation,
            received=tuple(sorted(record.received)),
        )
        try:
            answer = (await self._bus.ask(order.session, asked, deadline_s=CONVERSATION_S)).message
        except Unanswered as error:
            record.service_fault = f"{order.session} did not tell the conversation: {error}"
            return
        if isinstance(answer, ConversationTold):
            record.complete(answer)
        else:
            assert isinstance(answer, ChatRefused), f"a session told {answer}"
            record.service_fault = f"{answer.kind}: {answer.reason}"

    async def _run_code(self, key: str, episode: Episode) -> Ending:
        """Run the user's code to its end, its time limit, or until it is stopped."""
        task = asyncio.create_task(guarded(self._agent, episode), name=f"agent {key}")
        stop = self._stops[key] = asyncio.get_running_loop().create_future()
        seconds_max, limit = episode.limits.seconds_max, ""
        try:
            done, _ = await asyncio.wait(
                {task, stop}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED
            )
            if task not in done:
                limit = "" if stop in done else "seconds_max"
                task.cancel()
                done, _ = await asyncio.wait({task}, timeout=GRACE_S)
        finally:
            # Also when this whole process stops.
            task.cancel()
            del self._stops[key]
        stopped = stop.result() if stop.done() else ""
        if task not in done:
            log.warning("%s goes on %s s after it was cancelled", key, GRACE_S)
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)
            return Ending(stopped=stopped, limit=limit)
        if stopped:
            return Ending(stopped=stopped)
        if task.cancelled():
            told = "CancelledError: the agent cancelled itself"
            return Ending(limit=limit) if limit else Ending(error=told)
        if (error := task.exception()) is not None and not limit:
            log.warning("%s raised", key, exc_info=error)
        ending = read_ending(error)
        return Ending(limit=limit) if limit and not ending.stopped else ending


async def guarded(agent: Agent, episode: Episode) -> None:
    """Run the user's code; what would end the whole process becomes an error of the episode."""
    try:
        await agent.run(episode)
    except (SystemExit, KeyboardInterrupt) as error:
        # Raised out of a task, these would end the whole process and every other episode with it.
        raise RuntimeError(f"the agent raised {type(error).__name__}") from error


def _reward_input(episode: Episode, ending: Ending) -> RewardInput:
    record = episode.record
    limit = truncated_by(ending, record)
    return RewardInput(
        prompt=episode.prompt,
        messages=record.conversation,
        status=Status.TRUNCATED.value if limit else Status.COMPLETED.value,
        limit=limit,
        reported=record.reward,
        metrics=record.metrics,
        info=record.info,
    )


class Streams:
    """Replies that somebody on this host waits for, by number; those read meanwhile, by name."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Parts, int]] = {}
        """Where parts go, and the number of the next one."""
        self._serial = 0

    def number(self) -> int:
        """Of one more reply."""
        self._serial += 1
        return self._serial

    def open(self, number: int, parts: Parts) -> str:
        """Name under which the parts of this reply come."""
        name = str(number)
        self._open[name] = parts, 1
        return name

    def close(self, name: str) -> None:
        """Its reply is there; what is still on its way is no news."""
        self._open.pop(name, None)

    def take(self, part: ChatPart) -> None:
        """A part came. After one that is missing, the rest would read wrong: it is left out."""
        parts, number = self._open.get(part.stream, (None, 0))
        if parts is not None and part.number == number:
            self._open[part.stream] = parts, number + 1
            parts.put(part.content, part.reasoning, part.tool_calls)


class BusLine:
    """An episode's line to its session, over the bus.

    Args:
        bus: of this process.
        order: the episode.
        ends_s: monotonic time when no answer is waited for any more.
        streams: of this host.
    """

    def __init__(self, bus: Asks, order: RunEpisode, ends_s: float, streams: Streams) -> None:
        self._bus = bus
        self._streams = streams
        self._order = order
        self._ends_s = ends_s
        self._closed = False
        self.on_answer = _nothing

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        """The session's answer.

        Raises:
            ServiceFailed: there is none, or the episode is over.
        """
        session = self._order.session
        if self._closed:
            raise ServiceFailed(f"episode {self._order.trajectory_id} is over")
        number = self._streams.number()
        stream = self._streams.open(number, parts) if parts is not None else ""
        turn = replace(turn, stream=stream, number=number)
        deadline_s = max(MARGIN_S, self._ends_s - time.monotonic())
        asked = self._bus.ask(session, turn, deadline_s=deadline_s)
        asked.add_done_callback(_consume)
        try:
            # The bus's own future is never cancelled, whatever happens to the agent's code.
            answer = await asyncio.shield(asked)
        except Unanswered as error:
            raise ServiceFailed(f"{session} did not answer: {error}") from error
        except asyncio.CancelledError:
            if not asked.done():
                self._give_up(number)
            raise
        finally:
            self._streams.close(stream)
        self.on_answer()
        return answer.message

    def _give_up(self, number: int) -> None:
        """The agent waits no more: what is sampled on would be waste, and hold an engine."""
        order = self._order
        gone = ClientGone(
            trajectory_id=order.trajectory_id, number=number, reason="its agent waits no more"
        )
        with suppress(BusClosed):
            told = self._bus.tell(order.session, gone, deadline_s=MARGIN_S)
            told.add_done_callback(_consume)

    def reported(self, record: Record) -> None:
        """Whoever judges has the record itself."""

    def close(self) -> None:
        """The episode is over; code left behind gets no further reply."""
        self._closed = True


def _nothing() -> None:
    pass


def _consume(asked: asyncio.Future[Any]) -> None:
    # Nobody may be waiting any more, and an answer that never came is then no news.
    if not asked.cancelled():
        asked.exception()
