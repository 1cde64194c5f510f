"""Any other model: best effort, and it says so.

Nothing is known about seams, so nothing is repaired; replies are read in the commonest markup. A
delta is rendered after a dummy assistant message that carries the tool calls of the last reply,
since many templates look at the call that a result answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.actors.session.families.base import ReplyParser, Seam, UnknownFamily
from milepost.actors.session.families.calls import CallContext, json_call
from milepost.actors.session.families.declared import ALL_ROLES, markup, rendered_spans
from milepost.actors.session.families.markup import THINK_OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from milepost.actors.session.text.tokenizer import Tokenizer
    from milepost.messages.shared import ChatMessage


class Default:
    """Best effort for a template nobody described.

    Raises:
        UnknownFamily: the tokenizer does not name its end-of-sequence token.
    """

    name = "default"
    verified = ""
    appended_roles = ALL_ROLES
    trim_max = 0
    trailing_token_ids: frozenset[int] = frozenset()
    assistant_opener = ""
    delta_takes_tools = True
    arguments_as_objects = False
    bundled_template = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        stop = tokenizer.named_tokens.get("eos_token")
        stop_id = None if stop is None else tokenizer.token_id(stop)
        if stop is None or stop_id is None:
            raise UnknownFamily(
                "family default ends a reply at `eos_token`, which tokenizer_config.json "
                f"{'does not name' if stop is None else f'names as {stop!r}, no token of its own'}"
            )
        self.template_options: dict[str, Any] = {}
        self._stop = stop
        self.stop_token_ids: tuple[int, ...] = (stop_id,)

    def seam(self, last_token_id: int | None) -> Seam:
        """Nothing is repaired."""
        del last_token_id
        return Seam()

    def delta_base(self, tool_calls: Sequence[dict[str, Any]]) -> list[ChatMessage]:
        """A dummy exchange that ends with the calls of the last reply."""
        reply: ChatMessage = {"role": "assistant", "content": "", "reasoning_content": " "}
        if tool_calls:
            reply["tool_calls"] = list(tool_calls)
        else:
            reply["content"] = "dummy reply"
        return [
            {"role": "system", "content": "dummy system"},
            {"role": "user", "content": "dummy user"},
            reply,
        ]

    def reply_parser(
        self, prompt_tail: str, *, turn: int, tools: Sequence[Mapping[str, Any]]
    ) -> ReplyParser:
        """Reasoning and calls in the commonest markup."""
        thinking = prompt_tail.rstrip().endswith(THINK_OPEN)
        return markup(json_call)(CallContext(turn, tools), thinking)

    def assistant_spans(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        render: Callable[[Sequence[ChatMessage], bool], str],
    ) -> list[tuple[int, int]]:
        """Found by rendering the conversation up to each reply, which must only ever append."""
        return rendered_spans(text, messages, render, (self._stop,))
