"""A real session behind its real HTTP door, in this process; only the engine is a script.

For agents that know nothing but an address and a key. Requests are read, bounded and refused by the
door and the session core of a run, rendered and tokenized as in a run; each `Generate` that leaves
the core is answered as the episode's script says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from milepost.actors.agent.conformance.script import Conversation, Refuse, Say, Script, Silence
from milepost.actors.agent.conformance.spelling import ASSISTANT, STOP, byte_renderer
from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Received,
    Reply,
    Request,
    Tell,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.session.addresses import Addresses
from milepost.actors.session.core import SessionCore
from milepost.actors.session.desk import Desk
from milepost.actors.session.doors import DOOR, DoorTurn
from milepost.actors.session.engines import EnginePool
from milepost.actors.session.http.door import Door, DooredCore
from milepost.actors.session.http.lifecycle import FreeSessions, Lifecycle
from milepost.actors.session.http.models import Models
from milepost.actors.session.http.server import HttpServer, bind
from milepost.actors.session.http.service import Chats
from milepost.actors.session.run import record_maker, row_rules
from milepost.messages.bus import Incoming
from milepost.messages.engine import AbortRequests, Generate, Generated, GenerateRefused
from milepost.messages.session import AbandonTrajectory, ChatRefused, OpenSessions, SessionSpec
from milepost.messages.shared import (
    EpisodeLimits,
    FinishReason,
    Message,
    Purpose,
    SamplingParams,
    VersionSpan,
    WeightsUsed,
)

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.configs.topology import Topology

ENGINE: Final = "engine-0"
SESSION: Final = "session-0"
SECRET_BYTES: Final = 32
CONTEXT_TOKENS_MAX: Final = 1 << 20
PATIENCE_S: Final = 5.0
EXPECTED: Final = frozenset({"limit", "truncated", "engine", "closed", "unknown_session"})
"""Refusals that the script or the episode's end brought about; any other is the harness's doing."""


@dataclass(slots=True)
class HarnessSession:
    """Session, door and scripted engine, in the place of the bus.

    Attributes:
        core: behind its door.
        desk: of the core.
        conversations: name of an episode -> what its session saw.
    """

    desk: Desk
    core: DooredCore = field(init=False)
    conversations: dict[str, Conversation] = field(default_factory=dict)
    _asked: dict[Request, asyncio.Future[Incoming]] = field(default_factory=dict)
    _turns: dict[Request, Conversation] = field(default_factory=dict)
    _silent: dict[str, tuple[str, Conversation]] = field(default_factory=dict)
    """Request of the engine that is never answered -> key of the question."""
    _numbers: count[int] = field(default_factory=count)

    # ---- what an episode needs of it -----------------------------------------------------

    def open(self, name: str, script: Script, limits: EpisodeLimits) -> Conversation:
        """A conversation that follows this script, within these bounds."""
        made = self.conversations[name] = Conversation(script, limits.turns_max)
        spec = SessionSpec(
            trajectory_id=name,
            group_id="check",
            prompt_id="check",
            attempt=0,
            group_size=1,
            sampling=SamplingParams(tokens_max=limits.reply_tokens_max),
            limits=limits,
            purpose=Purpose.TRAIN,
            deliver_to="buffer",
        )
        self.ask(SESSION, OpenSessions(sessions=(spec,)), deadline_s=limits.seconds_max)
        assert self.desk.addresses is not None, "the door is open"
        made.address = self.desk.addresses.url(spec)
        return made

    def close(self, name: str) -> None:
        """The verdict is there."""
        gone = AbandonTrajectory(trajectory_id=name, attempt=0, reason="checked")
        self.feed(Received("check", gone))
        del self.conversations[name]

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        """As of `Bus`."""
        assert to == SESSION, to
        del deadline_s
        request = Request("check", next(self._numbers))
        asked = self._asked[request] = asyncio.get_running_loop().create_future()
        self.feed(Received("check", message, request))
        return asked

    def tell(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[None]:
        """As of `Bus`."""
        assert to == SESSION, to
        del deadline_s
        self.feed(Received("check", message))
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    # ---- what the shell of an actor does -------------------------------------------------

    def start(self) -> None:
        """The door serves clients from now on."""
        self._carry_out(self.core.start(self._now_s))

    def feed(self, event: Event) -> None:
        """Give the core an event, and carry out what it orders."""
        match event:
            case Received(_, DoorTurn() as turn, Request() as request):
                conversation = self.conversations.get(turn.trajectory_id)
                if conversation is not None:
                    # The door's list grows with its client's next request.
                    asked = replace(turn, messages=turn.messages[:])
                    conversation.requests.append(asked)
                    self._turns[request] = conversation
        self._carry_out(self.core.handle(event, self._now_s))

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _carry_out(self, effects: list[Effect]) -> None:
        loop = asyncio.get_running_loop()
        for effect in effects:
            match effect:
                case Ask(to, Generate() as message, key):
                    loop.call_soon(self._generate, key, to, message)
                case Tell(_, AbortRequests() as message):
                    for request_id in message.request_ids:
                        loop.call_soon(self._abort, request_id)
                case Reply(request, message):
                    self._reply(request, message)
                case Wake(key, at_s):
                    loop.call_at(at_s, self.feed, Woken(key))
                case Work():
                    done: Any = effect
                    result = done.carry_out(self.desk.renderer)
                    loop.call_soon(self.feed, WorkDone(effect.key, result))
                case _:
                    pass  # what goes to the buffer, and words to engines that forget a session

    def _reply(self, request: Request, message: Message) -> None:
        asked = self._asked.pop(request, None)
        if asked is not None and not asked.done():
            asked.set_result(Incoming(SESSION, 0, next(self._numbers), 0, message))

    def answered(self, request: Request, message: Message) -> None:
        """What a client of the door is answered; a refusal that it has earned is a fault."""
        conversation = self._turns.pop(request, None)
        if conversation is None or not isinstance(message, ChatRefused):
            return
        if message.kind not in EXPECTED:
            conversation.faults.append(f"{message.kind}: {message.reason}")

    # ---- the engine ----------------------------------------------------------------------

    def _generate(self, key: str, to: str, message: Generate) -> None:
        conversation = self.conversations.get(message.session_id)
        if conversation is None or not conversation.requests:
            refused = GenerateRefused(request_id=message.request_id, reason="the episode is over")
            self.feed(Answered(key, to, refused))
            return
        prompt = self.desk.renderer.tokenizer.decode(from_bulk(message.token_ids).tolist())
        turn = prompt.count(ASSISTANT) - 1
        match conversation.script(turn, conversation.requests[-1]):
            case Say() as said:
                self.feed(Answered(key, to, self._sampled(message, said)))
            case Refuse(kind):
                assert kind == "engine", f"an engine knows no {kind}: bound the episode instead"
                refused = GenerateRefused(request_id=message.request_id, reason="as scripted")
                self.feed(Answered(key, to, refused))
            case Silence():
                self._silent[message.request_id] = key, conversation
                conversation.asked.set()

    def _sampled(self, message: Generate, said: Say) -> Generated:
        tokenizer, room = self.desk.renderer.tokenizer, message.sampling.tokens_max
        sampled = tokenizer.encode(spelled(said) + ("" if said.is_cut else STOP))
        is_cut = said.is_cut or len(sampled) > room
        token_ids = np.asarray(sampled[:room], dtype=np.int32)
        num = len(token_ids)
        return Generated(
            request_id=message.request_id,
            token_ids=to_bulk(token_ids),
            logprobs=to_bulk(np.full(num, -1.0, dtype=np.float32)),
            spans=(VersionSpan(start=0, end=num, version=0),),
            weights=(WeightsUsed(version=0, digest="script", kv_version=0),),
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            cached_tokens=0,
        )

    def _abort(self, request_id: str) -> None:
        """Nobody waits any more for the answer that this engine does not give."""
        key, conversation = self._silent.pop(request_id, ("", None))
        if conversation is not None:
            conversation.stopped.set()
            refused = GenerateRefused(request_id=request_id, reason="stopped")
            self.feed(Answered(key, ENGINE, refused))


class _WatchedDoor(Door):
    """Also tells what clients are answered."""

    def __init__(
        self,
        core: SessionCore,
        feed: Callable[[Event], None],
        on_answer: Callable[[Request, Message], None],
    ) -> None:
        super().__init__(core, feed)
        self._on_answer = on_answer

    def take_out(self, effects: list[Effect]) -> list[Effect]:
        """As of `Door`."""
        for effect in effects:
            if isinstance(effect, Reply) and effect.request.source == DOOR:
                self._on_answer(effect.request, effect.message)
        return super().take_out(effects)


@contextlib.asynccontextmanager
async def harness_session(topology: Topology, folder: Path) -> AsyncIterator[HarnessSession]:
    """Open the door as `[actors.session.http]` says; close it at the end.

    Args:
        topology: has that table.
        folder: private, for the scripted model's tokenizer.

    Raises:
        OSError: nothing can listen there.
    """
    config = topology.actors.session
    assert config is not None, "a door belongs to a session"
    assert config.http is not None, "the topology has no [actors.session.http]"
    listener, base_url = bind(config.http, 0)
    renderer = byte_renderer(folder)
    desk = Desk(
        name=SESSION,
        renderer=renderer,
        pool=EnginePool((ENGINE,)),
        context_tokens_max=CONTEXT_TOKENS_MAX,
        patience_s=PATIENCE_S,
        rules=row_rules(config),
        addresses=Addresses(base_url, secrets.token_bytes(SECRET_BYTES)),
    )
    core = SessionCore(desk, new_record=record_maker(config), sessions_max=config.sessions_max)
    session = HarnessSession(desk)
    door = _WatchedDoor(core, session.feed, session.answered)
    session.core = DooredCore(core, door)
    models = Models("policy")
    chats = Chats(door, {}, config.http.dropped_fields, models)
    free = FreeSessions(
        allowed=False, key="", sampling=SamplingParams(tokens_max=1), limits=EpisodeLimits()
    )
    lifecycle = Lifecycle(
        door,
        chats,
        renderer,
        desk.rules.leaves,
        models=models,
        free=free,
        aside=asyncio.to_thread,
    )
    server = HttpServer(config.http, door, chats, lifecycle)
    await server.open(listener)
    session.start()
    try:
        yield session
    finally:
        await server.close()


def spelled(said: Say) -> str:
    """A reply as the model writes it."""
    calls = (
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in said.calls
    )
    return "\n".join(filter(None, (said.text, *calls)))
