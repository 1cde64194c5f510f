"""Streaming parser for gpt-oss: a reply is messages on channels.

`<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>commentary
to=functions.f <|constrain|>json<|message|>{...}<|call|>`, the prompt having opened the first header
with `<|start|>assistant`. analysis is reasoning, a message to a function is a call, everything else
is content. The recipient names the function; its JSON does not. Where the request has
tools, a message to somebody who is no function keeps its header: without it nobody could tell whom
the model meant.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from milepost.actors.session.families.base import ReplyDelta
from milepost.actors.session.families.calls import is_object
from milepost.actors.session.families.held import HeldText
from milepost.messages.shared import ToolCall

if TYPE_CHECKING:
    from milepost.actors.session.families.calls import CallContext

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", START)
"""What closes a message; a new start does, too, where the model forgot the end."""
ADDRESSED: Final = re.compile(r"(?:^|[\s>])to=[^\s<]")
RECIPIENT: Final = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyParser(HeldText):
    """See the module.

    Args:
        context: of the reply; without tools, a message to a function is content.
    """

    def __init__(self, context: CallContext) -> None:
        super().__init__()
        self._context = context
        self._header = ""
        self._in_body = False
        self._body: list[str] = []
        """Of a call: nothing of it is given out before its end."""

    def _advance(self, *, final: bool) -> list[ReplyDelta]:
        while self._read_body(final) if self._in_body else self._read_header(final):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read_header(self, final: bool) -> bool:  # noqa: FBT001
        place = self._held.find(MESSAGE)
        if place < 0:
            if final and self._held:
                # No message was ever opened: what was written is all there is to show.
                self._give(self._held)
                self._held = ""
            return False
        self._header = self._held[:place]
        self._held = self._held[place + len(MESSAGE) :]
        self._in_body = True
        if self._context.tools and not self._recipient and ADDRESSED.search(self._header):
            self._give(self._header + MESSAGE)
        return True

    def _read_body(self, final: bool) -> bool:  # noqa: FBT001
        text = self._held
        found = [(place, end) for end in ENDS if (place := text.find(end)) >= 0]
        if found:
            place, end = min(found)
            self._give(text[:place])
            self._held = text[place:] if end == START else text[place + len(end) :]
            self._close(whole=True)
            return True
        solid = len(text) if final else _solid(text)
        self._give(text[:solid])
        self._held = text[solid:]
        if final:
            self._close(whole=True)
        return False

    @property
    def _recipient(self) -> str:
        match = RECIPIENT.search(self._header) if self._context.tools else None
        return match.group(1) if match else ""

    def _give(self, text: str) -> None:
        if not text:
            return
        if self._recipient:
            self._body.append(text)
        elif CHANNEL + "analysis" in self._header:
            self._reasoning.append(text)
            self._deltas.append(ReplyDelta(reasoning=text))
        else:
            self._content.append(text)
            self._deltas.append(ReplyDelta(content=text))

    def _close(self, *, whole: bool) -> None:
        name, text = self._recipient, "".join(self._body)
        header, self._header, self._body, self._in_body = self._header, "", [], False
        if not name:
            return
        if whole and is_object(text.strip()):
            call_id = self._context.call_id(len(self._calls))
            call = ToolCall(call_id=call_id, name=name, arguments=text.strip())
            self._calls.append(call)
            self._deltas.append(ReplyDelta(tool_calls=(call,)))
        else:
            self._give(f"{header}{MESSAGE}{text}")


def _solid(text: str) -> int:
    """How much of the text cannot be the beginning of a closing token."""
    begins = text.rfind("<")
    if begins >= 0 and any(end.startswith(text[begins:]) for end in ENDS):
        return begins
    return len(text)
