"""One episode, as the user's code sees it: a prompt, a model to talk to, a result to report."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from milepost.actors.agent.errors import (
    ChatError,
    EpisodeStopped,
    LimitReached,
    RequestRefused,
    ServiceFailed,
)
from milepost.actors.agent.reply import Part, Parts, Reply, read_reply
from milepost.messages.session import ChatRefused, ChatReply, ChatTurn, ConversationTold
from milepost.messages.shared import VERDICT_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from milepost.messages.agent import RunEpisode
    from milepost.messages.shared import ChatMessage, EpisodeLimits, Message, Prompt, Purpose


class Line(Protocol):
    """How an episode reaches its session, and whoever is to judge it."""

    def reported(self, record: Record) -> None:
        """The code has reported a result; it may not be the last one."""
        ...

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        """The session's answer; with `parts`, what it samples is put there meanwhile.

        Raises:
            ServiceFailed: there is none.
        """
        ...


@dataclass(slots=True)
class Record:
    """What an episode has come to, for the verdict on it."""

    num_turns: int = 0
    """Replies of the model."""
    received: set[int] = field(default_factory=set)
    """Numbers, in its session, of the replies that came."""
    limit: str = ""
    """The bound that refused the newest request; empty when it was served."""
    cut_by: str = ""
    """The run's bound that cut the newest reply off; empty: none did."""
    service_fault: str = ""
    """Why the newest request could not be served; empty when it was."""
    stopped: str = ""
    """Why the run stopped it."""
    conversation: list[ChatMessage] = field(default_factory=list)
    """The newest request's messages, and its reply."""
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    bad_report: str = ""
    """Why a report cannot be used."""

    @property
    def generation(self) -> int:
        """Number of the reply that was asked for last of those that came; 0: none did."""
        return max(self.received, default=0)

    def complete(self, told: ConversationTold) -> None:
        """Its session has an HTTP door: what was said through that counts as what was said here."""
        is_newer = told.generation > self.generation
        self.received.update(told.received)
        if is_newer:
            self.received.add(told.generation)
            self.conversation = told.messages
            self.num_turns, self.cut_by = told.num_turns, ""
            self.service_fault = self.limit = ""
        self.service_fault = self.service_fault or told.fault
        self.limit = self.limit or told.limit


class Episode:
    """One episode of an agent.

    Attributes:
        prompt: messages, tools, label and metadata, as read from the data source.
        limits: bounds; reaching one ends the episode as truncated.
        purpose: training or evaluation.
        seed: for the environment's own randomness; equal for all members of a group.
        random: a generator with this seed.
        address: base URL of this episode's session for OpenAI and Anthropic clients, with any key;
            empty when the sessions of the run have no HTTP door.
        trajectory_id: name of the episode, and of its session.
        attempt: 0, or how often it was tried before.
        record: what it has come to; for the verdict, not for agents.
    """

    def __init__(self, order: RunEpisode, line: Line) -> None:
        self.prompt: Prompt = order.prompt
        self.limits: EpisodeLimits = order.limits
        self.purpose: Purpose = order.purpose
        self.seed: int = order.seed
        self.random = random.Random(order.seed)
        self.address = order.address
        self.trajectory_id = order.trajectory_id
        self.attempt = order.attempt
        self.record = Record()
        self._line = line

    @property
    def metadata(self) -> dict[str, Any]:
        """Of the prompt."""
        return self.prompt.metadata

    @property
    def label(self) -> Any:
        """Of the prompt: what the reward compares with."""
        return self.prompt.label

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tokens_max: int | None = None,
        adapter: str = "",
        parts: Parts | None = None,
    ) -> Reply:
        """The model's next reply.

        Args:
            messages: the whole conversation so far, each earlier reply's message unchanged.
            tools: definitions in the OpenAI shape; the prompt's own when left out. The same in
                every request of an episode.
            tokens_max: a tighter bound for this reply than the episode's.
            adapter: name of an adapter to sample under, in episodes that are evaluated only.
            parts: gets the reply while it is sampled; see `stream`.

        Raises:
            LimitReached: a bound of the episode; report what there is to report, and return.
            RequestRefused: the request is wrong.
            ServiceFailed: session or engine failed.
            EpisodeStopped: the run stopped this episode.
        """
        turn = self._turn(messages, tools, tokens_max, adapter)
        return self._receive(turn, await self._ask(turn, parts))

    async def stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tokens_max: int | None = None,
        adapter: str = "",
    ) -> AsyncIterator[Part | Reply]:
        """The model's next reply while it is sampled: its parts as they come, last the whole.

        The parts add up to the reply, unless some were late: the `Reply` is what counts. Leaving
        the loop before it gives the turn up.

        Args:
            messages: as of `chat`.
            tools: likewise.
            tokens_max: likewise.
            adapter: likewise.

        Raises:
            As `chat`.
        """
        parts = Parts()
        turn = self._turn(messages, tools, tokens_max, adapter)
        chat = asyncio.create_task(self._ask(turn, parts))
        chat.add_done_callback(_consume)
        try:
            while not chat.done():
                changed = asyncio.create_task(parts.changed.wait())
                try:
                    await asyncio.wait({chat, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()  # also when the episode is stopped
                if parts.changed.is_set():
                    yield parts.take_part()
            answer = chat.result()
            if parts.changed.is_set():
                yield parts.take_part()
            # Not before: who leaves with a part has not received the reply, and it is not judged.
            yield self._receive(turn, answer)
        finally:
            chat.cancel()

    def report(
        self,
        *,
        reward: float | None = None,
        metrics: Mapping[str, float] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Report a result; the last report counts, so an intermediate one is safe.

        Args:
            reward: finite, 1e30 in magnitude at most. Left out where a reward function of its own
                gives it.
            metrics: such numbers by name, for curves and tables (`solved`, ...).
            info: JSON values for people.

        Raises:
            ValueError: a number that is not finite, or too large.
            TypeError: not a number, or not JSON.

        The episode fails whatever is raised, also when its code catches the exception.
        """
        record = self.record
        try:
            if reward is not None:
                record.reward = finite(reward, "reward")
            if metrics is not None:
                record.metrics = {
                    name: finite(value, f"metric {name}") for name, value in metrics.items()
                }
            if info is not None:
                record.info = msgspec.json.decode(msgspec.json.encode(info))
        except Exception as error:
            record.bad_report = f"bad report: {error}"
            raise
        self._line.reported(record)

    def _turn(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] | None,
        tokens_max: int | None,
        adapter: str,
    ) -> ChatTurn:
        return ChatTurn(
            trajectory_id=self.trajectory_id,
            messages=list(messages),
            tools=list(self.prompt.tools if tools is None else tools),
            tokens_max=tokens_max,
            attempt=self.attempt,
            adapter=adapter,
        )

    async def _ask(self, turn: ChatTurn, parts: Parts | None) -> ChatReply:
        try:
            answer = await self._line.ask(turn, parts)
        except ServiceFailed as fault:
            self.record.service_fault = str(fault)
            raise
        if isinstance(answer, ChatRefused):
            raise self._refused(answer)
        assert isinstance(answer, ChatReply), f"a session answered a chat with {answer}"
        return answer

    def _receive(self, turn: ChatTurn, answer: ChatReply) -> Reply:
        record = self.record
        record.num_turns += 1
        if answer.generation:
            record.received.add(answer.generation)
        # A refused request that was made shorter, or whose turn was tried again, ended nothing.
        record.service_fault = record.limit = ""
        record.cut_by = answer.limit
        record.conversation = [*turn.messages, answer.message]
        return read_reply(answer)

    def _refused(self, refused: ChatRefused) -> ChatError:
        record = self.record
        match refused.kind:
            case "limit" | "truncated":
                record.limit = refused.limit or record.cut_by or "reply_tokens_max"
                return LimitReached(refused.reason, record.limit)
            case "closed":
                record.stopped = refused.reason
                return EpisodeStopped(refused.reason)
            case "unknown_session" | "engine" | "internal":
                record.service_fault = f"{refused.kind}: {refused.reason}"
                return ServiceFailed(record.service_fault)
            case kind:
                return RequestRefused(kind, refused.reason)


def _consume(chat: asyncio.Task[ChatReply]) -> None:
    # Nobody reads on, and then how the chat ended is no news: the record has it.
    if not chat.cancelled():
        chat.exception()


def finite(value: Any, name: str) -> float:
    """`value` as a float.

    Raises:
        TypeError: it is no number.
        ValueError: it is not finite, or larger than training can hold.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} is {value!r}, a number is needed")
    bound = f"its magnitude may be {VERDICT_MAX:g} at most"
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name} is too large for a float, {bound}") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}, a finite number is needed")
    if abs(number) > VERDICT_MAX:
        raise ValueError(f"{name} is {number:g}, {bound}")
    return number
