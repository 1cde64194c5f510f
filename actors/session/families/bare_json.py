"""Streaming parser for Llama 3: a reply is a text, or is one JSON call and nothing else.

`{"name": "f", "parameters": {...}}`, perhaps after `<|python_tag|>`, and several of them parted by
semicolons. A reply that begins like a call is held back to its end, since only then is it known;
one that does not is given out as it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from milepost.actors.session.families.base import ReplyDelta
from milepost.actors.session.families.calls import parse_json_call
from milepost.actors.session.families.held import HeldText
from milepost.actors.session.text.nesting import is_deep

if TYPE_CHECKING:
    from milepost.actors.session.families.calls import CallContext
    from milepost.messages.shared import ToolCall

PYTHON_TAG: Final = "<|python_tag|>"


class BareJsonParser(HeldText):
    """See the module.

    Args:
        context: of the reply; without tools, everything is text.
    """

    def __init__(self, context: CallContext) -> None:
        super().__init__()
        self._context = context
        self._is_text = not context.tools

    def _advance(self, *, final: bool) -> list[ReplyDelta]:
        begin = self._held.lstrip()
        if not self._is_text and not (begin.startswith("{") or _may_be(begin)):
            self._is_text = True
        if not self._is_text and not final:
            return []
        if not self._is_text and (calls := self._read()):
            self._calls += calls
            return [ReplyDelta(tool_calls=calls)]
        return self._give()

    def _give(self) -> list[ReplyDelta]:
        text, self._held = self._held, ""
        if not text:
            return []
        self._content.append(text)
        return [ReplyDelta(content=text)]

    def _read(self) -> tuple[ToolCall, ...]:
        text = self._held.strip().removeprefix(PYTHON_TAG)
        calls: list[ToolCall] = []
        for part in _objects(text):
            call = parse_json_call(part, self._context.call_id(len(calls)))
            if call is None:
                return ()
            calls.append(call)
        return tuple(calls)


def _may_be(begin: str) -> bool:
    """Whether a reply that begins so may turn out to be a call."""
    return begin.startswith(PYTHON_TAG) or PYTHON_TAG.startswith(begin)


def _objects(text: str) -> list[str]:
    """JSON objects parted by semicolons; a semicolon may stand inside a text, too."""
    parts: list[str] = []
    begin = ""
    if is_deep(text):
        return [text]
    for piece in text.split(";"):
        begin = f"{begin};{piece}" if begin else piece
        try:
            msgspec.json.decode(begin.strip())
        except msgspec.MsgspecError:
            continue
        parts.append(begin)
        begin = ""
    return [*parts, begin] if begin.strip() else parts
