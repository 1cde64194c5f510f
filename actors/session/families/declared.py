"""Families as declarations: what a chat format is made of, bound to a tokenizer.

A declaration names tokens and texts; `Declared` turns them into ids once, and answers what the
session asks. A format that needs more than a declaration gets a parser of its own, not a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from milepost.actors.session.families.bare_json import BareJsonParser
from milepost.actors.session.families.base import ReplyParser, Seam, UnknownFamily
from milepost.actors.session.families.calls import CallContext, CallReader
from milepost.actors.session.families.harmony import HarmonyParser
from milepost.actors.session.families.markup import CALL_TAGS, THINK_OPEN, MarkupParser
from milepost.actors.session.text.template import RenderFailed

if TYPE_CHECKING:
    from milepost.actors.session.text.tokenizer import Tokenizer
    from milepost.messages.shared import ChatMessage

ALL_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})

MakeParser = Callable[[CallContext, bool], ReplyParser]
"""(context, whether the prompt opened the reasoning) -> a fresh parser."""


def markup(read: CallReader, tags: tuple[str, str] = CALL_TAGS) -> MakeParser:
    """`<think>` blocks, and calls between `tags`."""

    def make(context: CallContext, thinking: bool) -> ReplyParser:  # noqa: FBT001
        read_calls = partial(_read, read, context)
        calls = bool(context.tools)
        return MarkupParser(read_calls, thinking=thinking, calls=calls, call_tags=tags)

    return make


def _read(read: CallReader, context: CallContext, body: str, index: int) -> Any:
    return read(body, index, context)


def bare_json(context: CallContext, thinking: bool) -> ReplyParser:  # noqa: FBT001
    """Llama 3."""
    del thinking
    return BareJsonParser(context)


def harmony(context: CallContext, thinking: bool) -> ReplyParser:  # noqa: FBT001
    """gpt-oss."""
    del thinking
    return HarmonyParser(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One chat format. Texts are as the template writes them."""

    name: str
    models: str
    """Which models speak it, for the docs."""
    verified: Literal["", "tokenizer and template", "tokenizer"] = ""
    """What of the vendor's own files the tests run on; empty: a fixture of public format facts."""
    stops: tuple[str, ...]
    """Special tokens that end a reply; the first must be there, the others may be missing."""
    frame: tuple[str, ...]
    """Special tokens around messages; text that spells one could be taken for it."""
    opener: str
    """What opens an assistant message."""
    make_parser: MakeParser
    reads: str
    """What the parser reads, for the docs."""
    after_end: str = ""
    """One token that the template writes after the first stop token, and no model samples."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Stop tokens taken off a row that goes on -> the token put in their place, or nothing."""
    trailing: tuple[str, ...] = ()
    """Tokens at the end of a conversation that say nothing."""
    roles: frozenset[str] = ALL_ROLES
    base: Literal["user", "calls", "exchange"] = "user"
    """What a delta is rendered after: a user's message; the same, and the calls of the last reply
    if it made any, for templates that look at them; or always a dummy reply, for templates that
    fold what a user says twice into one message."""
    delta_takes_tools: bool = False
    spans: Literal["marked", "rendered"] = "marked"
    """How replies of a recorded conversation are found: between opener and stop token, or by
    rendering the conversation up to each of them."""
    arguments: Literal["text", "object"] = "text"
    """As what the template takes the arguments of a call."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template that make it keep what was said; a topology cannot change them."""
    template: str = ""
    """Name of a template that comes with Milepost, for vendors who publish none."""


class Declared:
    """A declaration bound to a tokenizer; see `Family`.

    Raises:
        UnknownFamily: the tokenizer lacks a token of the format.
    """

    def __init__(self, declaration: Declaration, tokenizer: Tokenizer) -> None:
        self.declaration = declaration
        self.name = declaration.name
        self.verified: str = declaration.verified
        self.appended_roles = declaration.roles
        self.assistant_opener = declaration.opener
        self.delta_takes_tools = declaration.delta_takes_tools
        self.arguments_as_objects = declaration.arguments == "object"
        self.template_options = dict(declaration.options)
        self.bundled_template = declaration.template
        self._special = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
        for text in declaration.frame:
            self._needed(tokenizer, text)
        first, *others = declaration.stops
        present = [text for text in others if self._token(tokenizer, text) is not None]
        self._stops = (first, *present)
        self.stop_token_ids: tuple[int, ...] = tuple(
            self._needed(tokenizer, text) for text in self._stops
        )
        dropped = {old: new for old, new in declaration.dropped.items() if old in self._stops}
        self.trim_max = 1 if dropped else 0
        self._seams: dict[int, Seam] = {}
        if declaration.after_end:
            after = self._newline(tokenizer, declaration.after_end)
            self._seams[self.stop_token_ids[0]] = Seam(insert=(after,))
        for old, new in dropped.items():
            insert = (self._needed(tokenizer, new),) if new else ()
            self._seams[self._needed(tokenizer, old)] = Seam(drop=1, insert=insert)
        encoded = [tokenizer.encode(text).tolist() for text in declaration.trailing]
        self.trailing_token_ids = frozenset(ids[0] for ids in encoded if len(ids) == 1)

    def _token(self, tokenizer: Tokenizer, text: str) -> int | None:
        # Vendors do not mark all of their control tokens special.
        return self._special.get(text, tokenizer.added_tokens.get(text))

    def _needed(self, tokenizer: Tokenizer, text: str) -> int:
        token = self._token(tokenizer, text)
        if token is None:
            raise UnknownFamily(
                f"family {self.name} needs the special token {text}, "
                f"the tokenizer's are {sorted(self._special)}"
            )
        return token

    def _newline(self, tokenizer: Tokenizer, text: str) -> int:
        ids = tokenizer.encode(text)
        if len(ids) != 1:
            raise UnknownFamily(
                f"family {self.name} needs one token for a newline, got ids {ids.tolist()}"
            )
        return int(ids[0])

    def seam(self, last_token_id: int | None) -> Seam:
        """What the template writes between this token and the next message."""
        return Seam() if last_token_id is None else self._seams.get(last_token_id, Seam())

    def delta_base(self, tool_calls: Sequence[dict[str, Any]]) -> list[ChatMessage]:
        """One user message, and perhaps a reply to it.

        A message reads the same whatever stood before it, so the base may be anything that itself
        reads the same whatever follows. Where an assistant message does, an exchange is possible.
        """
        asked: ChatMessage = {"role": "user", "content": "dummy user"}
        base = self.declaration.base
        if base == "user" or (base == "calls" and not tool_calls):
            return [asked]
        reply: ChatMessage = {"role": "assistant", "content": ""}
        if tool_calls and base == "calls":
            reply["tool_calls"] = list(tool_calls)
        else:
            reply["content"] = "dummy reply"
        return [asked, reply]

    def reply_parser(
        self, prompt_tail: str, *, turn: int, tools: Sequence[Mapping[str, Any]]
    ) -> ReplyParser:
        """A fresh parser of the format."""
        thinking = prompt_tail.rstrip().endswith(THINK_OPEN)
        return self.declaration.make_parser(CallContext(turn, tools), thinking)

    def assistant_spans(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        render: Callable[[Sequence[ChatMessage], bool], str],
    ) -> list[tuple[int, int]]:
        """Between what opens each reply and the end of its stop token."""
        if self.declaration.spans == "rendered":
            return rendered_spans(text, messages, render, self._stops)
        _refuse_written(messages, (*self.declaration.frame, *self._stops))
        # What the generation prompt adds beyond the opener is the template's, no reply's.
        asked: list[ChatMessage] = [{"role": "user", "content": "one"}]
        prompt = render(asked, True)[len(render(asked, False)) :]  # noqa: FBT003
        opener, spans, cursor = self.declaration.opener, [], 0
        while (opened := text.find(opener, cursor)) >= 0:
            start = opened + len(prompt if text.startswith(prompt, opened) else opener)
            ends = [(at, stop) for stop in self._stops if (at := text.find(stop, start)) >= 0]
            if not ends and not self.trim_max:
                told = f"an assistant message is not closed by {self._stops[0]} after {start}"
                raise RenderFailed(told)
            at, stop = min(ends) if ends else (len(text), "")
            # A stop token that opens the next message is looked at again, as its opening.
            cursor = at + len(stop)
            spans.append((start, cursor))
        produced = sum(message["role"] == "assistant" for message in messages)
        if len(spans) != produced:
            raise RenderFailed(
                f"{produced} assistant messages were rendered as {len(spans)} turns that open "
                f"with {opener!r}"
            )
        return spans


def rendered_spans(
    text: str,
    messages: Sequence[ChatMessage],
    render: Callable[[Sequence[ChatMessage], bool], str],
    stops: Sequence[str],
) -> list[tuple[int, int]]:
    """Replies found by rendering the conversation up to each, which must only ever append.

    Raises:
        RenderFailed: it does not, or a reply does not end with one of `stops`.
    """
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render(messages[:index], True)  # noqa: FBT003
        through = render(messages[: index + 1], False)  # noqa: FBT003
        found = ((through.rfind(stop, len(prompt)), stop) for stop in stops)
        end = max((at + len(stop) for at, stop in found if at >= 0), default=-1)
        if not (text.startswith(through) and through.startswith(prompt)) or end < 0:
            raise RenderFailed(
                f"message {index} is not rendered the same with and without what follows it, "
                f"or does not end with {stops[0]!r}; mark what the assistant produces with "
                "{% generation %} in the template"
            )
        spans.append((len(prompt), end))
    return spans


def _refuse_written(messages: Sequence[ChatMessage], tokens: Sequence[str]) -> None:
    for index, message in enumerate(messages):
        for token in tokens:
            if any(token in text for text in _texts(message)):
                raise RenderFailed(
                    f"message {index} ({message['role']}) holds {token} as text: who said what "
                    "cannot be told from its rendering"
                )


def _texts(message: ChatMessage) -> list[str]:
    texts = [message.get("content"), message.get("reasoning_content")]
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        texts += [function.get("name"), function.get("arguments")]
    return [text if isinstance(text, str) else msgspec.json.encode(text).decode() for text in texts]
