"""One chat of a guest, from its question to its reply; streamed as fast as the guest asks on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from milepost.actors.agent.errors import ChatError, EpisodeStopped, LimitReached, RequestRefused
from milepost.actors.agent.outcome import tell_error
from milepost.actors.agent.reply import Parts
from milepost.messages.guests import ReplyPart
from milepost.messages.session import ChatRefused, ChatReply

if TYPE_CHECKING:
    from milepost.actors.agent.episode import Episode
    from milepost.messages.bus import Bus, Incoming
    from milepost.messages.guests import GuestChat
    from milepost.messages.shared import Message

OVER: Final = "the episode is over: the run stopped it, or its time was up"
SUPERSEDED: Final = "a newer request of this episode took its place"
GIVEN_UP: Final = "its agent waits no more"

log = logging.getLogger(__name__)


class Talk:
    """A chat on its way. What nobody has asked for yet is put together, and is never much: a reply.

    Args:
        bus: of the door.
        episode: asks its session.
        asked: the guest's first question.
        message: what it asks.
    """

    def __init__(self, bus: Bus, episode: Episode, asked: Incoming, message: GuestChat) -> None:
        self._bus = bus
        self._asked: Incoming | None = asked
        self._parts = Parts() if message.stream else None
        self._wanted = asyncio.Event()
        self._wanted.set()
        name = message.episode_id
        self._reply = asyncio.create_task(_reply(episode, message, self._parts), name=f"ask {name}")
        self._serving = asyncio.create_task(self._serve(), name=f"chat {name}")

    @property
    def is_over(self) -> bool:
        """Its last answer was given."""
        return self._serving.done()

    @property
    def wants_question(self) -> bool:
        """There is more to say than was asked for."""
        return not self._serving.done() and self._asked is None

    def ask_on(self, asked: Incoming) -> None:
        """The guest wants more of the reply."""
        assert self.wants_question, "one question at a time"
        self._asked = asked
        self._wanted.set()

    def stop(self, reason: str) -> None:
        """Nobody wants the rest; whoever waits for it is told."""
        self._reply.cancel()
        self._serving.cancel()
        self._answer(ChatRefused(kind="closed", reason=reason))

    async def _serve(self) -> None:
        while True:
            await self._wanted.wait()
            parts = self._parts
            if parts is not None and not self._reply.done():
                changed = asyncio.create_task(parts.changed.wait())
                try:
                    await asyncio.wait({self._reply, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()  # also when this chat is stopped
            if parts is None:
                await asyncio.wait({self._reply})
            if parts is None or self._reply.done():
                self._answer(self._result())
                return
            content, reasoning, calls = parts.take()
            self._answer(ReplyPart(content=content, reasoning=reasoning, tool_calls=calls))

    def _result(self) -> Message:
        if (error := self._reply.exception()) is not None:
            # A fault of our own side: the guest must not wait for the rest of its episode.
            log.error("a guest's chat failed", exc_info=error)
            return ChatRefused(kind="internal", reason=tell_error(error))
        return self._reply.result()

    def _answer(self, message: Message) -> None:
        asked, self._asked = self._asked, None
        self._wanted.clear()
        if asked is not None:
            self._bus.reply(asked, message)


async def _reply(episode: Episode, message: GuestChat, parts: Parts | None) -> Message:
    try:
        reply = await episode.chat(
            message.messages, tools=message.tools, tokens_max=message.tokens_max, parts=parts
        )
    except ChatError as error:
        return _refused(error)
    return ChatReply(
        message=reply.message,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        versions=reply.versions,
        generation=reply.generation,
        limit=reply.limit,
    )


def _refused(error: ChatError) -> ChatRefused:
    match error:
        case LimitReached():
            return ChatRefused(kind="limit", reason=str(error), limit=error.limit)
        case RequestRefused():
            return ChatRefused(kind=error.kind, reason=error.reason)
        case EpisodeStopped():
            return ChatRefused(kind="closed", reason=str(error))
        case _:
            return ChatRefused(kind="engine", reason=str(error))
