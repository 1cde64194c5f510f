r"""ChatML: `<|im_start|>role\n ... <|im_end|>\n`, the frame that the Qwen family shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from milepost.actors.session.families.base import ReplyParser, Seam, UnknownFamily
from milepost.actors.session.families.markup import THINK_OPEN, MarkupParser
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from milepost.actors.session.text.tokenizer import Tokenizer
    from milepost.messages.shared import ChatMessage

START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
ASSISTANT: Final = f"{START}assistant\n"
ALL_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})


class ChatML:
    """What Qwen-like families have in common.

    Raises:
        UnknownFamily: the tokenizer has no such special tokens, or no token for a newline.
    """

    name = "chatml"
    verified = False
    appended_roles = ALL_ROLES
    trim_max = 0
    assistant_opener = f"{START}assistant"
    delta_takes_tools = False
    """Tools stand in the first system message, which is never part of a delta."""
    extra_stops: tuple[str, ...] = ("<|endoftext|>",)

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
        for token in (START, END):
            if token not in special:
                raise UnknownFamily(
                    f"family {self.name} needs the special token {token}, "
                    f"the tokenizer's are {sorted(special)}"
                )
        newline = tokenizer.encode("\n")
        if len(newline) != 1:
            raise UnknownFamily(
                f"family {self.name} needs one token for a newline, got ids {newline.tolist()}"
            )
        self._end = special[END]
        self._newline = int(newline[0])
        stops = (END, *(token for token in self.extra_stops if token in special))
        self.stop_token_ids: tuple[int, ...] = tuple(special[token] for token in stops)
        self.trailing_token_ids = frozenset({self._newline})

    def seam(self, last_token_id: int | None) -> Seam:
        """The template writes a newline after the end of a turn; the model stops before it."""
        return Seam(insert=(self._newline,)) if last_token_id == self._end else Seam()

    def delta_base(self, tool_calls: Sequence[dict[str, Any]]) -> list[ChatMessage]:
        """One user message.

        A message in ChatML reads the same whatever stood before it, so the base may be anything
        that itself reads the same whatever follows. An assistant message would not do: Qwen3's
        template drops its reasoning as soon as a user speaks again.
        """
        del tool_calls
        return [{"role": "user", "content": "dummy user"}]

    def reply_parser(self, prompt_tail: str, *, turn: int, tools: bool) -> ReplyParser:
        """Tagged reasoning, JSON calls in tags."""

        def parse(body: str, index: int) -> ToolCall | None:
            return parse_json_call(body, f"call_{turn}_{index}")

        thinking = prompt_tail.rstrip().endswith(THINK_OPEN)
        return MarkupParser(parse, thinking=thinking, calls=tools)

    def assistant_spans(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        render: Callable[[Sequence[ChatMessage], bool], str],
    ) -> list[tuple[int, int]]:
        r"""Between each `<|im_start|>assistant\n` and the end of its `<|im_end|>`."""
        del render
        for index, message in enumerate(messages):
            written = [text for text in _texts(message) if START in text or END in text]
            if written:
                raise RenderFailed(
                    f"message {index} ({message['role']}) holds {START} or {END} as text: "
                    "who said what cannot be told from its rendering"
                )
        spans, cursor = [], 0
        while (opened := text.find(ASSISTANT, cursor)) >= 0:
            start = opened + len(ASSISTANT)
            close = text.find(END, start)
            if close < 0:
                raise RenderFailed(f"an assistant message is not closed by {END} after {start}")
            cursor = close + len(END)
            spans.append((start, cursor))
        produced = sum(message["role"] == "assistant" for message in messages)
        if len(spans) != produced:
            raise RenderFailed(
                f"{produced} assistant messages were rendered as {len(spans)} turns that open "
                f"with {ASSISTANT!r}"
            )
        return spans


class _JsonCall(Struct):
    name: str
    arguments: Raw = Raw(b"{}")


def parse_json_call(body: str, call_id: str) -> ToolCall | None:
    """A call written as `{"name": ..., "arguments": {...}}`; None when it is anything else.

    The arguments stay the text that was sampled: spacing, key order and number formats included.
    """
    try:
        call = msgspec.json.decode(body.strip(), type=_JsonCall)
    except msgspec.MsgspecError:
        return None
    arguments = bytes(call.arguments).decode()
    if not call.name or not arguments.startswith("{"):
        return None
    return ToolCall(call_id=call_id, name=call.name, arguments=arguments)


def _texts(message: ChatMessage) -> list[str]:
    texts = [message.get("content"), message.get("reasoning_content")]
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        texts += [function.get("name"), function.get("arguments")]
    return [text if isinstance(text, str) else msgspec.json.encode(text).decode() for text in texts]
