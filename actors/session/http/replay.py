"""The replayed history of one session, read once.

A client sends the whole conversation with each turn. What is byte for byte what it sent before is
not parsed again: it stands for the very message objects of the last time, in the very list. Its
bytes are read once, for their hash, and neither copied nor put together.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw
from xxhash import xxh3_128, xxh3_128_digest

from milepost.actors.session.history import Replayed
from milepost.actors.session.http.fields import NO_JSON, check_once
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.text.nesting import NESTING_MAX, is_deep
from milepost.actors.session.validation import check_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage

    Convert = Callable[[dict[str, Any], int], tuple[ChatMessage, ...]]

T = TypeVar("T")

_LIST = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_TOOLS = msgspec.json.Decoder(list[dict[str, Any]])


class Replay:
    """What was sent last on one session in one dialect."""

    __slots__ = (
        "_cut",
        "_digests",
        "_end",
        "_first",
        "_hash",
        "_hasher",
        "_read",
        "_reply",
        "_said",
        "_short",
        "_start",
        "_tools",
        "_tools_digest",
    )

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._read: list[tuple[ChatMessage, ...]] = []
        """By item of its list."""
        self._first: tuple[ChatMessage, ...] = ()
        self._said = Replayed()
        """The first messages, and those of all items."""
        self._start = self._end = 0
        """In the last body: where its list of messages begins, and where the last of them ends."""
        self._hash = b""
        """Of the last body up to that end."""
        self._hasher = xxh3_128()
        """Of the request, as far as it repeats the last body: no byte is hashed twice."""
        self._short = b""
        """The request that is read, without what it repeats of the last body."""
        self._cut = 0
        """How many bytes that are."""
        self._tools: list[dict[str, Any]] = []
        self._tools_digest = b""
        self._reply: ChatMessage = {}
        """The newest."""

    def begin(self, body: Sequence[bytes]) -> bytes:
        """A request: its body without the messages that it repeats from the last one, to the byte.

        Most bodies are the last one with messages added, and are then not even scanned again.

        Args:
            body: in the pieces that it came in.
        """
        self._cut = 0
        if self._end and (rest := self._rest(body)):
            before = self._start + 1
            self._short = b"".join((*_first_bytes(body, before), memoryview(rest)[1:]))
            self._cut = self._end + 1 - before
        else:
            self._short = body[0] if len(body) == 1 else b"".join(body)
        return self._short

    def _rest(self, body: Sequence[bytes]) -> bytes:
        """What follows the repeated messages, from the comma on; empty: it does not repeat them."""
        at, left = 0, self._end
        while at < len(body) and len(body[at]) <= left:
            left -= len(body[at])
            at += 1
        if at == len(body) or body[at][left : left + 1] != b",":
            return b""
        self._hasher = xxh3_128()
        for piece in body[:at]:
            self._hasher.update(piece)
        self._hasher.update(memoryview(body[at])[:left])
        if self._hasher.digest() != self._hash:
            return b""
        return b"".join((memoryview(body[at])[left:], *body[at + 1 :]))

    def end(self) -> None:
        """The request is read, or refused: its body is not kept."""
        self._short = b""

    def messages(
        self,
        raw: bytes,
        convert: Convert,
        name: str,
        place: int,
        first: tuple[ChatMessage, ...] = (),
    ) -> Replayed:
        """The conversation of the request that was begun; every message of it is checked.

        Args:
            raw: JSON of a list of objects.
            convert: the messages that one of them stands for.
            name: of the field.
            place: where its value begins in what `begin` gave.
            first: messages that stand before all of them.

        Raises:
            TurnRefused: kind bad_request; no such list, or one of them cannot be taken.
        """
        try:
            items = _LIST.decode(raw)
        except NO_JSON as error:
            raise TurnRefused("bad_request", f"{name}: {error}") from error
        if self._cut and not items:
            raise TurnRefused("bad_request", f"{name}: a comma stands before the end of the list")
        digests = [xxh3_128_digest(item) for item in items]
        same = len(self._digests)
        if not self._cut:
            same = _num_same(self._digests, digests)
            items, digests = items[same:], digests[same:]
        fresh = []
        for index, raw_item in enumerate(items, same):
            item = _read(_OBJECT, raw_item, f"{name}[{index}]")
            check_once(bytes(raw_item), item, f"{name}[{index}]")
            fresh.append(
                tuple(
                    self._known_text(check_message(message, index))
                    for message in convert(item, index)
                )
            )
        if same < len(self._digests) or self._first != first:
            self._first, self._digests = first, self._digests[:same]
            self._read = self._read[:same]
            self._said = Replayed(chain(first, *self._read))
        self._digests += digests
        self._read += fresh
        self._said += chain(*fresh)
        self._mark(raw, place)
        return self._said

    def _mark(self, raw: bytes, start: int) -> None:
        """Note where the messages stand in this body, for the next one."""
        short, self._end = self._short, 0
        end = start + len(raw) - 1
        # A list that a dialect made of something else stands nowhere in the body.
        if self._digests and short.startswith(raw, start):
            while short[end - 1 : end].isspace():
                end -= 1
            if self._cut:
                assert start == self._start, "the list stands where it stood"
                self._hasher.update(b",")
                self._hasher.update(memoryview(short)[start + 1 : end])
            else:
                self._hasher = xxh3_128(memoryview(short)[:end])
            self._start, self._end = start, end + self._cut
            self._hash = self._hasher.digest()

    def tools(
        self,
        raw: bytes,
        convert: Callable[[dict[str, Any], int], dict[str, Any]],
        dropped: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """The tools in the OpenAI shape; the same objects while the client sends the same.

        Args:
            raw: JSON of a list of objects.
            convert: one of them to the OpenAI shape.
            dropped: fields of theirs, or of their functions, that are left out.

        Raises:
            TurnRefused: kind bad_request; no list of objects, or `convert` refuses.
        """
        if not raw:
            return []
        digest = xxh3_128_digest(raw)
        if digest != self._tools_digest:
            tools = [_without(tool, dropped) for tool in _read(_TOOLS, raw, "tools")]
            self._tools = [convert(tool, index) for index, tool in enumerate(tools)]
            self._tools_digest = digest
        return self._tools

    def _known_text(self, message: ChatMessage) -> ChatMessage:
        """The message; what it repeats of the newest reply is not held in memory twice."""
        if self._reply and message["role"] == "assistant":
            if message == self._reply:
                return self._reply
            for name in ("content", "reasoning_content"):
                if name in message and message[name] == self._reply.get(name):
                    message[name] = self._reply[name]
        return message

    def answered(self, reply: ChatReply) -> None:
        """Remember what a reply says."""
        self._reply = reply.message


def _read(decoder: msgspec.json.Decoder[T], raw: bytes | Raw, name: str) -> T:
    try:
        text = bytes(raw)
        if text.count(b"[") + text.count(b"{") > NESTING_MAX and is_deep(text.decode()):
            raise TurnRefused("bad_request", f"{name} is nested more than {NESTING_MAX} deep")
        return decoder.decode(raw)
    except NO_JSON as error:
        raise TurnRefused("bad_request", f"{name}: {error}") from error


def _without(tool: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The tool without these fields, which Chat Completions has in its function."""
    kept = {name: value for name, value in tool.items() if name not in names}
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = {name: value for name, value in function.items() if name not in names}
    return kept


def _first_bytes(body: Sequence[bytes], count: int) -> Iterator[memoryview]:
    """The first `count` bytes of the body, as pieces of its pieces."""
    for piece in body:
        if not count:
            return
        part = memoryview(piece)[:count]
        count -= len(part)
        yield part


def _num_same(old: list[bytes], new: list[bytes]) -> int:
    """Length of the beginning that two lists share."""
    pairs = zip(old, new, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
