"""The replayed history of one session, read once.

A client sends the whole conversation with each turn. What is byte for byte what it sent before is
not parsed again: it stands for the very message objects of the last time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_digest

from milepost.actors.session.refusal import TurnRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from milepost.messages.session import ChatReply
    from milepost.messages.shared import ChatMessage

    Convert = Callable[[dict[str, Any], int], tuple[ChatMessage, ...]]

SPELLINGS_MAX: Final = 16
"""Of one call id: a turn that is tried again may give the same id another time."""

_LIST = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_TOOLS = msgspec.json.Decoder(list[dict[str, Any]])


class Replay:
    """What was sent last on one session in one dialect.

    Args:
        spelled: arguments of each sampled call of the session as they were sampled, by call id.
    """

    __slots__ = ("_digests", "_read", "_tools", "_tools_digest", "spelled")

    def __init__(self, spelled: dict[str, list[str]]) -> None:
        self._digests: list[bytes] = []
        self._read: list[tuple[ChatMessage, ...]] = []
        self._tools: list[dict[str, Any]] = []
        self._tools_digest = b""
        self.spelled = spelled

    def messages(self, raw: bytes, convert: Convert, name: str) -> list[ChatMessage]:
        """The conversation.

        Args:
            raw: JSON of a list of objects.
            convert: the messages that one of them stands for.
            name: of the field.

        Raises:
            TurnRefused: kind bad_request; no such list, or `convert` refuses.
        """
        try:
            items = _LIST.decode(raw)
        except msgspec.DecodeError as error:
            raise TurnRefused("bad_request", f"{name}: {error}") from error
        digests = [xxh3_128_digest(item) for item in items]
        same = 0
        for old, new in zip(self._digests, digests, strict=False):
            if old != new:
                break
            same += 1
        read = self._read[:same]
        for index in range(same, len(items)):
            try:
                item = _OBJECT.decode(items[index])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise TurnRefused("bad_request", f"{name}[{index}]: {error}") from error
            read.append(convert(item, index))
        self._digests, self._read = digests, read
        return [message for messages in read for message in messages]

    def tools(
        self, raw: bytes, convert: Callable[[dict[str, Any], int], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The tools in the OpenAI shape; the same objects while the client sends the same.

        Raises:
            TurnRefused: kind bad_request; no list of objects, or `convert` refuses.
        """
        if not raw:
            return []
        digest = xxh3_128_digest(raw)
        if digest != self._tools_digest:
            try:
                tools = _TOOLS.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise TurnRefused("bad_request", f"tools: {error}") from error
            self._tools = [convert(tool, index) for index, tool in enumerate(tools)]
            self._tools_digest = digest
        return self._tools

    def answered(self, reply: ChatReply) -> None:
        """Remember how the calls of a reply are spelled."""
        for call in reply.message.get("tool_calls", ()):
            spellings = self.spelled.setdefault(call["id"], [])
            arguments = call["function"]["arguments"]
            if arguments not in spellings:
                spellings.append(arguments)
                del spellings[:-SPELLINGS_MAX]

    def spelling(self, call_id: str, value: Any) -> str:
        """JSON of a call's arguments: as it was sampled when it is the same value."""
        for arguments in self.spelled.get(call_id, ()):
            if msgspec.json.decode(arguments) == value:
                return arguments
        return msgspec.json.encode(value).decode()
