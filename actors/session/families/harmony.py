"""Streaming parser for gpt-oss: a reply is messages on channels.

`<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant<|channel|>commentary
to=functions.f <|constrain|>json<|message|>{...}<|call|>`, the prompt having opened the first header
with `<|start|>assistant`. analysis is reasoning, a message to a function is a call, everything else
is content. The recipient names the function; its JSON does not. Where the request has
tools, a message to somebody who is no function keeps its header: without it nobody could tell whom
the model meant.

A header begins with its first control token, or with a recipient before that: the prompt wrote the
role that it follows. Other text between messages is content, and so is a header that another start
or an end gives up; only blank text before a header belongs to the format.
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
OPENS: Final = (START, CHANNEL, "<|constrain|>", MESSAGE)
"""The first of these begins a header."""
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", START)
"""What closes a message; a new start does, too, where the model forgot the end."""
ADDRESSED: Final = re.compile(r"(?:^|[\s>])to=[^\s<]")
RECIPIENT: Final = re.compile(r"to=functions\.([^\s<]+)")
_OPEN: Final = re.compile("|".join(map(re.escape, OPENS)))
_END: Final = re.compile("|".join(map(re.escape, ENDS)))
_OPENED: Final = re.compile("|".join(map(re.escape, (MESSAGE, *ENDS))))
_LEADS: Final = re.compile(r"\s*(?:to=[^\s<]+(?:\s+[^\s<]+)?\s*)?")
"""What may stand before a header's first control token: a recipient, and the type of the text."""
_MAY_LEAD: Final = re.compile(r"\s*(?:t|to|to=(?:[^\s<]+(?:\s+(?:[^\s<]+\s*)?)?)?)?")
"""The beginnings of that."""


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
        self._has_spoken = False
        """Since the last message, or before the first; no header can begin with a recipient now."""
        self._body: list[str] = []
        """Of a call: nothing of it is given out before its end."""

    def _advance(self, *, final: bool) -> list[ReplyDelta]:
        while self._read_body(final) if self._in_body else self._read_header(final):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read_header(self, final: bool) -> bool:  # noqa: FBT001
        first = _OPEN.search(self._held)
        if first is None:
            # At the end, what was written is all there is to show.
            self._give_first(len(self._held) if final else self._spoken())
            return False
        lead = self._held[: first.start()]
        if lead and (self._has_spoken or not _LEADS.fullmatch(lead)):
            self._has_spoken = True
            self._give_first(first.start())
            return True
        begins = first.end() if first.group() == START else first.start()
        opened = _OPENED.search(self._held, begins)
        if opened is None:
            if final:
                self._give_first(len(self._held))
            return False
        if opened.group() != MESSAGE:
            self._has_spoken = False
            self._give_first(opened.start() if opened.group() == START else opened.end())
            return True
        self._header = self._held[: opened.start()]
        self._held = self._held[opened.end() :]
        self._in_body = True
        if self._context.tools and not self._recipient and ADDRESSED.search(self._header):
            self._give(self._header + MESSAGE)
        return True

    def _spoken(self) -> int:
        """How much of what is held is no header, whatever follows."""
        solid = _solid(self._held, OPENS)
        if not self._has_spoken and _MAY_LEAD.fullmatch(self._held, 0, solid):
            return 0
        self._has_spoken = True
        return solid

    def _give_first(self, size: int) -> None:
        self._give(self._held[:size])
        self._held = self._held[size:]

    def _read_body(self, final: bool) -> bool:  # noqa: FBT001
        text = self._held
        if end := _END.search(text):
            self._give(text[: end.start()])
            self._held = text[end.start() if end.group() == START else end.end() :]
            self._close(whole=True)
            return True
        self._give_first(len(text) if final else _solid(text, ENDS))
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
        self._has_spoken = False
        if not name:
            return
        if whole and is_object(text.strip()):
            call_id = self._context.call_id(len(self._calls))
            call = ToolCall(call_id=call_id, name=name, arguments=text.strip())
            self._calls.append(call)
            self._deltas.append(ReplyDelta(tool_calls=(call,)))
        else:
            self._give(f"{header}{MESSAGE}{text}")


def _solid(text: str, tokens: tuple[str, ...]) -> int:
    """How much of the text cannot be the beginning of one of these control tokens."""
    begins = text.rfind("<")
    if begins >= 0 and any(token.startswith(text[begins:]) for token in tokens):
        return begins
    return len(text)
