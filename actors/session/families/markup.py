"""Streaming parser for replies with tagged reasoning and tool calls.

Reads `<think> reasoning </think> content <tool_call> call </tool_call> ...`, with a family's own
tags around calls. One state machine
serves the streamed and the whole reply: a whole reply is one piece. Only text that nothing later
can turn into markup is given out, the rest is held back: where the pieces are cut changes nothing.

Rules:

- Reasoning opens at the start of a reply only. Newlines at its two ends, and between it and the
  content, belong to the markup.
- Newlines before a call, and blank text after a call, belong to the markup.
- A call that is malformed, or not closed, stays in the content as it was written.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from milepost.actors.session.families.base import ReplyDelta
from milepost.actors.session.families.held import HeldText

if TYPE_CHECKING:
    from collections.abc import Callable

    from milepost.messages.shared import ToolCall

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
CALL_TAGS = ("<tool_call>", "</tool_call>")


class _Mode(Enum):
    START = "start"
    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"


class MarkupParser(HeldText):
    """See the module's rules.

    Args:
        read_calls: makes calls of the text between the tags, given how many came before; None
            when the text is malformed.
        thinking: the prompt already opened the reasoning block.
        calls: whether tool calls are looked for.
        call_tags: what opens and closes a block of calls; each begins with its only "<".
    """

    def __init__(
        self,
        read_calls: Callable[[str, int], tuple[ToolCall, ...] | None],
        *,
        thinking: bool,
        calls: bool,
        call_tags: tuple[str, str] = CALL_TAGS,
    ) -> None:
        super().__init__()
        self._read_calls = read_calls
        self._call_open, self._call_close = call_tags
        assert self._call_open.rfind("<") == 0, f"tags {call_tags} need one <"
        assert self._call_close.rfind("<") == 0, f"tags {call_tags} need one <"
        self._looks_for_calls = calls
        self._mode = _Mode.REASONING if thinking else _Mode.START
        self._strips_newlines = thinking
        """Newlines that come next belong to the markup."""
        self._after_call = False
        """Nothing but blank text since the last call."""

    def _advance(self, *, final: bool) -> list[ReplyDelta]:
        # Each step that returns True has changed the mode; there are at most as many as tags.
        while self._step(final):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _step(self, final: bool) -> bool:  # noqa: FBT001
        mode = self._mode
        if mode is _Mode.CONTENT:
            return self._read_content(final)
        if mode is _Mode.CALL:
            return self._read_call(final)
        return self._start(final) if mode is _Mode.START else self._read_reasoning(final)

    def _start(self, final: bool) -> bool:  # noqa: FBT001
        text = self._held.lstrip()
        if text.startswith(THINK_OPEN):
            self._held = text[len(THINK_OPEN) :]
            self._strips_newlines = True
            self._mode = _Mode.REASONING
            return True
        if final or not THINK_OPEN.startswith(text):
            self._mode = _Mode.CONTENT
            return True
        return False

    def _read_reasoning(self, final: bool) -> bool:  # noqa: FBT001
        text = self._without_markup_newlines()
        close = text.find(THINK_CLOSE)
        if close >= 0:
            self._give_reasoning(text[:close].rstrip("\n"))
            self._held = text[close + len(THINK_CLOSE) :]
            self._strips_newlines = True
            self._mode = _Mode.CONTENT
            return True
        if final:
            self._give_reasoning(text.rstrip("\n"))
            self._held = ""
            return False
        solid = text[: _tag_begins(text, THINK_CLOSE)].rstrip("\n")
        self._give_reasoning(solid)
        self._held = text[len(solid) :]
        return False

    def _read_content(self, final: bool) -> bool:  # noqa: FBT001
        text = self._without_markup_newlines()
        if not self._looks_for_calls:
            self._give_content(text)
            self._held = ""
            return False
        opened = text.find(self._call_open)
        if opened < 0 and final:
            self._give_content("" if self._after_call and not text.strip() else text)
            self._held = ""
            return False
        solid = text[: opened if opened >= 0 else _tag_begins(text, self._call_open)].rstrip("\n")
        if self._after_call and not solid.strip():
            solid = ""
        self._give_content(solid)
        self._held = text[len(solid) :]
        if opened >= 0:
            self._mode = _Mode.CALL
            return True
        return False

    def _read_call(self, final: bool) -> bool:  # noqa: FBT001
        # The blank text before the tag is still held: a malformed call gives it back.
        opened = self._held.index(self._call_open)
        close = self._held.find(self._call_close, opened)
        if close < 0:
            if final:
                self._give_content(self._held)
                self._held = ""
            return False
        end = close + len(self._call_close)
        body = self._held[opened + len(self._call_open) : close]
        calls = self._read_calls(body, len(self._calls))
        if calls is None:
            self._give_content(self._held[:end])
        else:
            self._calls += calls
            self._deltas.append(ReplyDelta(tool_calls=calls))
            self._after_call = True
        self._held = self._held[end:]
        self._mode = _Mode.CONTENT
        return True

    def _without_markup_newlines(self) -> str:
        if not self._strips_newlines:
            return self._held
        text = self._held.lstrip("\n")
        self._strips_newlines = not text
        return text

    def _give_content(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._deltas.append(ReplyDelta(content=text))
            self._after_call = False

    def _give_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._deltas.append(ReplyDelta(reasoning=text))


def _tag_begins(text: str, tag: str) -> int:
    """Where the end of `text` may be the beginning of `tag`; its length when it is none."""
    # A tag has one "<", its first character, so only the last one can begin it.
    begins = text.rfind("<")
    return begins if begins >= 0 and tag.startswith(text[begins:]) else len(text)
