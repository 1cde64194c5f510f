"""Episodes to run, and sessions that answer as told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from milepost.actors.agent.episode import Record
from milepost.actors.agent.reply import Parts
from milepost.messages.agent import RunEpisode
from milepost.messages.bus import Incoming
from milepost.messages.session import ChatRefused, ChatReply, ChatTurn
from milepost.messages.shared import (
    EpisodeLimits,
    FinishReason,
    Message,
    Prompt,
    Purpose,
    Usage,
)

QUESTION = {"role": "user", "content": "What is the pet of kai?"}


def order(trajectory_id: str = "g.0", **fields: Any) -> RunEpisode:
    """An episode to run."""
    fields = {
        "group_id": "g",
        "attempt": 0,
        "prompt": Prompt(prompt_id="p", messages=[QUESTION], label="cat", metadata={"hops": 1}),
        "limits": EpisodeLimits(seconds_max=60.0),
        "purpose": Purpose.TRAIN,
        "seed": 5,
        "session": "session-0",
        "report_to": "rollout",
        **fields,
    }
    return RunEpisode(trajectory_id=trajectory_id, **fields)


def reply(text: str = "cat", **fields: Any) -> ChatReply:
    """A reply of the model."""
    fields = {"finish_reason": FinishReason.STOP, "versions": (3,), **fields}
    message = {"role": "assistant", "content": text, **fields.pop("message", {})}
    return ChatReply(message=message, usage=Usage(prompt_tokens=9, completion_tokens=2), **fields)


def refused(kind: str, limit: str = "") -> ChatRefused:
    """A refusal."""
    return ChatRefused(kind=kind, reason=f"because of {kind}", limit=limit)


class ScriptedLine:
    """A line whose session gives these answers, one after the other; an exception is raised."""

    def __init__(self, *answers: Message | BaseException) -> None:
        self.answers = deque(answers)
        self.turns: list[ChatTurn] = []

    def reported(self, record: Record) -> None:
        """Nobody listens."""

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        """The next answer; whoever wants parts gets it letter by letter."""
        self.turns.append(turn)
        answer = self.answers.popleft()
        if isinstance(answer, BaseException):
            raise answer
        if parts is not None and isinstance(answer, ChatReply):
            for letter in answer.message["content"]:
                parts.put(letter, "", [])
                await asyncio.sleep(0)
        return answer


class FakeBus:
    """What episodes use of the bus. `answer` decides, or leaves a future open."""

    def __init__(self, answer: Callable[[Message], Message | BaseException | None]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Message, float]] = []
        self.told: list[Message] = []
        self.futures: list[asyncio.Future[Incoming]] = []
        self.on_ask = asyncio.Event()

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        """As of `Bus`."""
        self.asked.append((to, message, deadline_s))
        future: asyncio.Future[Incoming] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.on_ask.set()
        answer = self._answer(message)
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(Incoming(to, 0, len(self.asked), 0, answer))
        return future

    def tell(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[None]:
        """As of `Bus`."""
        assert to == "session-0", to
        del deadline_s
        self.told.append(message)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken
