"""What an HTTP dialect does: reads a request into a chat turn, writes the reply back.

Three are spoken: OpenAI Chat Completions, OpenAI Responses, Anthropic Messages. All see the same
sessions, and may be mixed on one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from milepost.actors.session.http.continued import Kept
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from milepost.actors.session.families import ReplyDelta
    from milepost.actors.session.http.continued import Continued
    from milepost.actors.session.http.fields import Fields
    from milepost.actors.session.http.replay import Replay
    from milepost.actors.session.state import Session
    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage

encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Reading:
    """What a request is read against."""

    session: Session
    replay: Replay
    template_options: Mapping[str, Any]
    kept: Kept = field(default_factory=Kept)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Attributes:
        messages: the whole conversation in the OpenAI shape.
        tools: in the OpenAI shape.
        tokens_max: the client's own bound of the reply.
        stream: answer with server-sent events.
        model: as the client calls it; said back.
        usage: a stream ends with token counts (Chat Completions).
        echo: fields that the dialect says back (Responses).
        begun: the client has written the beginning of the reply itself (Anthropic).
        keep: what its response stands for, if a later request may go on from it (Responses).
    """

    messages: list[ChatMessage]
    tools: list[dict[str, Any]]
    tokens_max: int | None = None
    stream: bool = False
    model: str = ""
    usage: bool = False
    echo: Mapping[str, Any] | None = None
    keep: Continued | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """Of one reply.

    Attributes:
        serial: number of the request, unlike any other of this server.
        created_s: Unix time of the request.
        prompt_tokens_hint: tokens of the row before this turn, for dialects that tell them first.
    """

    serial: str
    created_s: float
    prompt_tokens_hint: int
    asked: Asked


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no reply.

    Attributes:
        status: of HTTP.
        kind: of `ChatRefused`, or the door's own.
        reason: for people.
        limit: name of the bound, if one was reached.
    """

    status: int
    kind: str
    reason: str
    limit: str = ""


class ReplyWriter(Protocol):
    """Writes one reply as server-sent events, in pieces; all of them are the whole reply."""

    def begin(self) -> bytes:
        """Before the first delta."""
        ...

    def deltas(self, deltas: Sequence[ReplyDelta]) -> bytes:
        """What was sampled meanwhile."""
        ...

    def end(self, reply: ChatReply) -> bytes:
        """How it ended."""
        ...

    def fault(self, fault: Fault) -> bytes:
        """The reply breaks off."""
        ...


class Dialect(Protocol):
    """One HTTP API."""

    def read(self, fields: Fields, reading: Reading) -> Asked:
        """What the request asks for.

        Raises:
            TurnRefused: kind bad_request; names the field.
        """
        ...

    def response_id(self, about: About) -> str:
        """As the reply's body has it."""
        ...

    def reply(self, reply: ChatReply, about: About) -> bytes:
        """The body of a whole reply."""
        ...

    def fault(self, fault: Fault) -> bytes:
        """The body of a refusal."""
        ...

    def writer(self, about: About) -> ReplyWriter:
        """For a streamed reply."""
        ...


def finish_word(reply: ChatReply, *, stop: str, calls: str, length: str) -> str:
    """Why a reply ended, in the dialect's words."""
    if reply.finish_reason is FinishReason.LENGTH:
        return length
    return calls if reply.message.get("tool_calls") else stop


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = b"event: %s\n" % name.encode() if name else b""
    return b"%sdata: %s\n\n" % (head, encode(data))


def smaller(*bounds: int | None) -> int | None:
    """The smallest of the bounds that were given."""
    given = [bound for bound in bounds if bound is not None]
    return min(given) if given else None
