"""What each path of the HTTP door does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from aiohttp import web

from milepost.actors.session.doors import DoorTurn
from milepost.actors.session.http.answers import fault_of, refusal
from milepost.actors.session.http.branches import Answer
from milepost.actors.session.http.connection import has_left, why_gone
from milepost.actors.session.http.continued import RESPONSES_MAX, Kept
from milepost.actors.session.http.dialect import About, Reading
from milepost.actors.session.http.dialects import DIALECTS
from milepost.actors.session.http.fields import Fields
from milepost.actors.session.http.replay import Replay
from milepost.actors.session.http.whole import Whole
from milepost.actors.session.refusal import TurnRefused
from milepost.messages.session import ChatReply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from milepost.actors.session.http.dialect import Asked, Dialect
    from milepost.actors.session.http.door import Door, Exchange
    from milepost.actors.session.http.models import Models
    from milepost.actors.session.state import Session

EVENTS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


_BEGUN: Final = (
    "the messages end with an assistant's: a reply that its client has begun is not the policy's, "
    "leave it out"
)


@dataclass(frozen=True, slots=True)
class _Client:
    """What is known of the clients of one session."""

    replays: dict[str, Replay]
    kept: Kept
    answers: dict[int, Answer]
    """By the number of the generation, the oldest first."""


class Chats:
    """Chat turns in any dialect.

    Args:
        door: to the core.
        template_options: of the run.
        dropped_fields: names of fields that clients may send in vain.
        models: names that clients may ask for.
    """

    def __init__(
        self,
        door: Door,
        template_options: Mapping[str, Any],
        dropped_fields: tuple[str, ...],
        models: Models,
    ) -> None:
        self._door = door
        self._options = template_options
        self._models = models
        self._dropped = frozenset(dropped_fields)
        self._clients: WeakKeyDictionary[Session, _Client] = WeakKeyDictionary()
        self._serial = 0

    async def answer(
        self, request: web.BaseRequest, session: Session, path: str, body: Sequence[bytes]
    ) -> web.StreamResponse:
        """The next reply of this session; the body is in pieces."""
        dialect, spec = DIALECTS[path], session.spec
        try:
            asked = self.read(session, path, body)
        except TurnRefused as refused:
            return refusal(dialect, refused.message())
        if asked.begun:
            return refusal(dialect, TurnRefused("bad_request", _BEGUN).message())
        # A reply may take minutes, and a long history need not wait for it.
        del body
        self._serial += 1
        turn = DoorTurn(
            trajectory_id=spec.trajectory_id,
            messages=asked.messages,
            tools=asked.tools,
            tokens_max=asked.tokens_max,
            attempt=spec.attempt,
            stream="http" if asked.stream else "",
            adapter=self._models.adapter_of(asked.model),
            number=self._serial,
        )
        serial = f"{spec.trajectory_id.replace('.', '_')}_{spec.attempt}_{self._serial}"
        about = About(serial, time.time(), session.record.num_tokens, asked)
        exchange = self._door.ask(turn)
        try:
            if asked.stream:
                return await self._streamed(request, dialect, about, exchange, path, session)
            answer = await exchange.answer
        finally:
            # However this ends: without an answer by now, nobody waits for one any more.
            self._door.gone(exchange, turn, why_gone(request))
        if isinstance(answer, ChatReply):
            self._answered(session, path, answer, about)
            received = partial(session.heard.add, answer.generation)
            return Whole(dialect.reply(answer, about), received)
        return refusal(dialect, answer)

    def read(self, session: Session, path: str, body: Sequence[bytes]) -> Asked:
        """What a body asks for, in the pieces that it came in.

        Raises:
            TurnRefused: kind bad_request.
        """
        client = self._client(session)
        replay = client.replays[path]
        reading = Reading(session, replay, self._options, client.kept)
        try:
            fields = Fields(replay.begin(body), self._dropped)
            return DIALECTS[path].read(fields, reading)
        finally:
            replay.end()

    def answers(self, session: Session) -> dict[int, Answer]:
        """How its replies left this door, by the number of the generation."""
        return self._client(session).answers.copy()

    def _client(self, session: Session) -> _Client:
        known = self._clients.get(session)
        if known is None:
            known = _Client({name: Replay() for name in DIALECTS}, Kept(), {})
            self._clients[session] = known
        return known

    def _answered(self, session: Session, path: str, reply: ChatReply, about: About) -> None:
        client = self._client(session)
        client.replays[path].answered(reply)
        response_id = DIALECTS[path].response_id(about)
        if about.asked.keep is not None:
            client.kept.remember(response_id, about.asked.keep, reply.message)
        client.answers[reply.generation] = Answer(about.created_s, time.time(), response_id)
        # A turn may be tried again and again.
        if len(client.answers) > max(RESPONSES_MAX, session.spec.limits.turns_max):
            del client.answers[next(iter(client.answers))]

    async def _streamed(
        self,
        request: web.BaseRequest,
        dialect: Dialect,
        about: About,
        exchange: Exchange,
        path: str,
        session: Session,
    ) -> web.StreamResponse:
        """Events as the reply is sampled; a refusal before the first token keeps its status."""
        await exchange.news()
        answer = exchange.answer.result() if exchange.answer.done() else None
        if answer is not None and not isinstance(answer, ChatReply):
            return refusal(dialect, answer)
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        writer = dialect.writer(about)
        pieces = [writer.begin()]
        while answer is None or exchange.deltas:
            pieces.append(writer.deltas(exchange.take()))
            # A client that reads slowly waits here; what is sampled meanwhile comes in one piece.
            await response.write(b"".join(pieces))
            pieces = []
            await exchange.news()
            answer = exchange.answer.result() if exchange.answer.done() else None
        if isinstance(answer, ChatReply):
            self._answered(session, path, answer, about)
            pieces.append(writer.end(answer))
        else:
            pieces.append(writer.fault(fault_of(answer)))
        is_there = not has_left(request)
        await response.write(b"".join(pieces))
        if isinstance(answer, ChatReply) and is_there:
            session.heard.add(answer.generation)
        await response.write_eof()
        return response
