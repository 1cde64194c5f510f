"""A reply read while it is sampled: tokens in, what they add to the message out.

Only a view: rows are made of the engine's whole answer. The view must come out as that answer
reads, or the turn is refused, since the client would go on with words that nobody sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from milepost.actors.effects import Effect, Tell
from milepost.actors.session.doors import DOOR, StreamReply
from milepost.actors.session.families import ReplyDelta
from milepost.actors.session.generation import tool_call
from milepost.actors.session.refusal import TurnRefused
from milepost.messages.agent import ChatPart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from milepost.actors.session.families import ParsedReply, ReplyParser
    from milepost.actors.session.state import Flight
    from milepost.actors.session.text.rendering import Renderer

CONTEXT_TOKENS: Final = 6
"""How many tokens before the new ones are decoded with them: a decoder may strip the first."""
_PATIENCE_TOKENS: Final = 8
_BROKEN: Final = "\ufffd"


class TextStream:
    """Text of a growing list of tokens, given out when no later token can change it.

    Args:
        decode: ids to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._try_at = 1

    def feed(self, token_ids: Sequence[int], *, final: bool = False) -> str:
        """The text that these tokens complete; with `final`, all that is left."""
        self._pending += token_ids
        if not self._pending or (len(self._pending) < self._try_at and not final):
            return ""
        text = self._decode(self._context + self._pending)
        if text.endswith(_BROKEN) and not final:
            # Half a character. Bytes that never become one are tried ever more rarely.
            if len(self._pending) >= _PATIENCE_TOKENS:
                self._try_at = 2 * len(self._pending)
            return ""
        new = text[len(self._context_text) :]
        self._remember(text)
        self._pending = []
        self._try_at = 1
        return new

    def _remember(self, text: str) -> None:
        """Keep the end of what was decoded; it must begin where a character does.

        Half a character at the beginning would spoil what comes after it: some decoders read a run
        of bytes as a whole, or not at all.
        """
        context = (self._context + self._pending)[-CONTEXT_TOKENS:]
        context_text = self._decode(context)
        if not text.endswith(context_text):
            # What is new begins with a character.
            context = self._pending
            context_text = self._decode(context)
        self._context, self._context_text = context, context_text


class ReplyStream:
    """One reply on its way to a client.

    Args:
        decode: ids to text.
        parser: of this reply, not fed yet.
        stop_token_ids: the last token is no text when it is one of these.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        parser: ReplyParser,
        stop_token_ids: Collection[int],
    ) -> None:
        self._text = TextStream(decode)
        self._parser = parser
        self._stops = frozenset(stop_token_ids)
        self._token_ids: list[int] = []

    def feed(self, start: int, token_ids: list[int]) -> list[ReplyDelta]:
        """What tokens [start, ...) of the reply add.

        Raises:
            TurnRefused: kind engine. The reply is another than what the client has: an engine
                failed in the middle, and the next try does not repeat its beginning.
        """
        fresh = self._fresh(start, token_ids)
        return self._parser.feed(self._text.feed(fresh)) if fresh else []

    def finish(self, token_ids: list[int], parsed: ParsedReply) -> list[ReplyDelta]:
        """What the rest of the whole reply adds.

        Raises:
            TurnRefused: kind engine, as `feed`; kind internal, when the view does not read as the
                whole reply does.
        """
        text = self._text.feed(self._fresh(0, token_ids), final=True)
        deltas = self._parser.feed(text) + self._parser.finish()
        if self._parser.reply() != parsed:
            raise TurnRefused(
                "internal", "the reply reads otherwise as a stream than as a whole: ask without"
            )
        return deltas

    def _fresh(self, start: int, token_ids: list[int]) -> list[int]:
        """The tokens that were not seen yet; those that were must be the same."""
        known = self._token_ids[start : start + len(token_ids)]
        if known != token_ids[: len(known)] or start > len(self._token_ids):
            raise TurnRefused(
                "engine",
                f"the reply was begun again and differs within its first {len(self._token_ids)} "
                "tokens, which its client has: ask again",
            )
        fresh = token_ids[len(known) :]
        self._token_ids += fresh
        # Only the last token of a reply can be a stop.
        return fresh[:-1] if fresh and fresh[-1] in self._stops else fresh


def stream_of(flight: Flight, renderer: Renderer) -> ReplyStream:
    """What the flight's client has of its reply, begun when there is nothing yet."""
    if flight.stream is None:
        assert flight.piece is not None
        assert flight.sampling is not None
        plan = flight.plan
        parser = renderer.family.reply_parser(
            flight.piece.tail, turn=flight.call_number, tools=plan.tools
        )
        stops = flight.sampling.stop_token_ids
        flight.stream = ReplyStream(renderer.tokenizer.decode, parser, stops)
    return flight.stream


def tell_part(flight: Flight, deltas: list[ReplyDelta]) -> list[Effect]:
    """Give these to whoever asked for the reply: through the HTTP door, or over the bus."""
    if not deltas:
        return []
    request = flight.request
    if request.source == DOOR:
        return [StreamReply("stream", request, tuple(deltas))]
    flight.num_parts += 1
    part = ChatPart(
        stream=flight.stream_name,
        number=flight.num_parts,
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=[tool_call(call) for delta in deltas for call in delta.tool_calls],
    )
    return [Tell(request.source, part)]
