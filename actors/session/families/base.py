"""What a chat-template family knows: the seams between messages, stop tokens, and parsers.

A family is asked, never trusted with tokens: the row is the session's, and a family only says what
belongs at a seam, which text base a delta is rendered on, and how a reply reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from milepost.messages.shared import ChatMessage, ToolCall


class Seam(NamedTuple):
    """Repair between a row and the text that follows it."""

    drop: int = 0
    """Tokens taken off the end of the row: a stop token that also opens the next message."""
    insert: tuple[int, ...] = ()
    """Template tokens the model does not sample, such as a newline after the end of a turn."""


class ReplyDelta(Struct, frozen=True):
    """What one more piece of a reply's text adds. Empty fields add nothing."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Whole calls: a call is known once its text is complete."""


class ParsedReply(Struct, frozen=True):
    """A reply, read."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


class ReplyParser(Protocol):
    """Reads one reply, in pieces of any size; the pieces' deltas add up to the whole."""

    def feed(self, text: str) -> list[ReplyDelta]:
        """What `text` adds. Text that may yet turn out to be markup is held back."""
        ...

    def finish(self) -> list[ReplyDelta]:
        """What the held-back text adds, now that no more comes."""
        ...

    def reply(self) -> ParsedReply:
        """All that was read, after `finish`."""
        ...

    def read(self, text: str) -> ParsedReply:
        """A whole reply: the same as `feed`, `finish` and `reply`."""
        ...


class Family(Protocol):
    """One chat-template family, bound to a tokenizer."""

    @property
    def name(self) -> str:
        """As in `model.family`."""
        ...

    @property
    def verified(self) -> str:
        """What of the vendor's own files tests run on; empty: none."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """A sampled one ends the reply and is part of it."""
        ...

    @property
    def appended_roles(self) -> frozenset[str]:
        """Roles that may follow a generated reply."""
        ...

    @property
    def trim_max(self) -> int:
        """Most tokens a seam may drop."""
        ...

    @property
    def trailing_token_ids(self) -> frozenset[int]:
        """Ids at the end of a conversation that a canonical rendering may have more of."""
        ...

    @property
    def assistant_opener(self) -> str:
        """How an assistant message starts in rendered text; empty when the family cannot say."""
        ...

    @property
    def arguments_as_objects(self) -> bool:
        """Whether the template takes the arguments of a call as an object, not as JSON text."""
        ...

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables of the template that the family fixes."""
        ...

    @property
    def bundled_template(self) -> str:
        """File of a template to use where the model's folder has none; empty: there is none."""
        ...

    @property
    def delta_takes_tools(self) -> bool:
        """Whether the dummy base is rendered with the conversation's tools."""
        ...

    def seam(self, last_token_id: int | None) -> Seam:
        """Repair after a row that ends with this token; None is an empty row."""
        ...

    def delta_base(self, tool_calls: Sequence[dict[str, Any]]) -> list[ChatMessage]:
        """Dummy conversation that a delta is rendered on.

        Args:
            tool_calls: of the last reply, for templates that look at the call a result answers.
        """
        ...

    def reply_parser(
        self, prompt_tail: str, *, turn: int, tools: Sequence[Mapping[str, Any]]
    ) -> ReplyParser:
        """A fresh parser.

        Args:
            prompt_tail: the end of the prompt's text; it may have opened a reasoning block.
            turn: number of the reply; makes the ids of its calls unique in the session.
            tools: of the conversation; without any, no calls are looked for.
        """
        ...

    def assistant_spans(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        render: Callable[[Sequence[ChatMessage], bool], str],
    ) -> list[tuple[int, int]]:
        """[start, end) of what the assistant produced, end-of-turn token included, in order.

        Args:
            text: the whole conversation, rendered.
            messages: the conversation.
            render: renders a part of it, with or without the generation prompt.

        Raises:
            RenderFailed: the places cannot be told exactly.
        """
        ...


class UnknownFamily(ValueError):
    """No such family, or the tokenizer lacks a token the family needs."""
