"""A session that refuses what a real one refuses, and whose model says what a script says.

It stands in the bus's place: the agent's code, its episode and the verdict on it are those of a
run. Histories are kept by the session actor's own `LinearHistory` and checked by its own rules.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from milepost.actors.session.history import LinearHistory
from milepost.actors.session.matchers import resolve_matcher
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.validation import check_messages, check_tools
from milepost.messages.bus import Incoming
from milepost.messages.session import ChatRefused, ChatReply, ChatTurn
from milepost.messages.shared import ChatMessage, EpisodeLimits, FinishReason, Message, Usage

APPENDED_ROLES: Final = frozenset({"system", "user", "tool"})
SESSION: Final = "session-0"
CHATS_MAX: Final = 200
"""Chats of one episode; an agent that asks on beyond all refusals would never end."""


@dataclass(frozen=True, slots=True)
class Say:
    """A reply: text, or calls of tools; `is_cut` when it ended at a token bound."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments, as the model wrote them."""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """No reply."""

    kind: str
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer at all."""


Action = Say | Refuse | Silence
Script = Callable[[int, ChatTurn], Action]
"""(number of the turn from 0, the request) -> what the model does."""


@dataclass(slots=True)
class Conversation:
    """One episode, as its session saw it."""

    script: Script
    turns_max: int
    address: str = ""
    """Where it can be reached over HTTP; empty when it cannot."""
    requests: list[ChatTurn] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Requests that every session refuses, with the reason."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first chat that gets no answer."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nobody waits any more for a chat that gets no answer."""


class ScriptedSession:
    """What `Episodes` needs of a bus."""

    def __init__(self) -> None:
        self.conversations: dict[str, Conversation] = {}
        self._histories: dict[str, LinearHistory] = {}
        self._ids = count(1)

    def open(self, name: str, script: Script, limits: EpisodeLimits) -> Conversation:
        """A conversation that follows this script, within these bounds."""
        self._histories[name] = LinearHistory(resolve_matcher("strict"), APPENDED_ROLES)
        made = self.conversations[name] = Conversation(script, limits.turns_max)
        return made

    def close(self, name: str) -> None:
        """The verdict is there; code that was left behind may still ask, and is refused."""

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        """As of `Bus`; an answer comes in the loop's next turn, as from another process."""
        del deadline_s
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Incoming] = loop.create_future()
        assert isinstance(message, ChatTurn), "an episode asks nothing but chats"
        conversation = self.conversations[message.trajectory_id]
        answer = self._answer(conversation, message)
        if answer is None:
            conversation.asked.set()
            return future
        incoming = Incoming(to, 0, next(self._ids), 0, answer)
        loop.call_soon(_give, future, incoming)
        return future

    def tell(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[None]:
        """As of `Bus`; an answer that nobody waits for changes nothing here."""
        del to, message, deadline_s
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    def _answer(self, conversation: Conversation, turn: ChatTurn) -> Message | None:
        conversation.requests.append(turn)
        history = self._histories[turn.trajectory_id]
        if len(conversation.requests) > CHATS_MAX:
            # It would go round for ever: it gets the one answer that stops it.
            return ChatRefused(kind="closed", reason=f"{CHATS_MAX} chats in one episode")
        try:
            check_tools(turn.tools)
            plan = history.plan(check_messages(turn.messages), turn.tools)
        except TurnRefused as refused:
            if refused.kind != "truncated":
                conversation.faults.append(f"{refused.kind}: {refused}")
            return refused.message()
        if plan.base_turns >= conversation.turns_max:
            told = f"{plan.base_turns} turns were generated"
            return ChatRefused(kind="limit", reason=told, limit="turns_max")
        match conversation.script(plan.base_turns, turn):
            case Refuse(kind, limit):
                return ChatRefused(kind=kind, reason="as the script says", limit=limit)
            case Silence():
                return None
            case Say() as said:
                reply = _message(said, plan.base_turns)
                history.commit(plan, reply, truncated=said.is_cut)
                return ChatReply(
                    message=reply,
                    finish_reason=FinishReason.LENGTH if said.is_cut else FinishReason.STOP,
                    usage=Usage(prompt_tokens=1, completion_tokens=1),
                    versions=(0,),
                    limit="reply_tokens_max" if said.is_cut else "",
                )


def _message(said: Say, turn: int) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": said.text}
    if said.calls:
        message["tool_calls"] = [
            {
                "id": f"call-{turn}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(said.calls)
        ]
    return message


def _give(future: asyncio.Future[Incoming], incoming: Incoming) -> None:
    if not future.done():
        future.set_result(incoming)


def fitting_call(tool: dict[str, Any]) -> tuple[str, str]:
    """A call of this tool with arguments of the types that its definition asks for."""
    function = tool["function"]
    properties = function.get("parameters", {}).get("properties", {})
    arguments = {name: _value(schema) for name, schema in properties.items()}
    return function["name"], json.dumps(arguments)


def _value(schema: dict[str, Any]) -> Any:
    if choices := schema.get("enum"):
        return choices[0]
    samples: dict[str, Any] = {
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "array": [],
        "object": {},
    }
    return samples.get(schema.get("type", "string"), "text")
