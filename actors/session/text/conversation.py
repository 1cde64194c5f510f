"""A recorded conversation as one row, for supervised training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from milepost.actors.session.text.provenance import find_contents, mark_tokens
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.trajectory import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from milepost.actors.session.text.rendering import Renderer
    from milepost.messages.shared import ChatMessage


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """T tokens; `RECORDED` exactly where the assistant produced one, its end of turn included."""

    token_ids: NDArray[np.int32]
    """[T]"""
    provenance: NDArray[np.uint8]
    """[T]"""
    turns: tuple[tuple[int, int], ...]
    """[start, end) in tokens of each reply."""


def conversation_row(
    renderer: Renderer, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]
) -> ConversationRow:
    """Render the whole conversation once and find what the assistant produced.

    Replies are tokenized apart from what surrounds them, as they are when a model samples them
    after a prompt; a merge across that border would teach tokens that never occur. What follows
    the last reply is cut off: nothing is learned from it.

    Raises:
        RenderFailed: the template refuses the conversation or leaves out instructions, its replies
            cannot be located, or it has none.
    """
    renderer.template.check_instructions(messages, tools, is_begun=False)
    if renderer.template.marks_generation:
        text, spans = renderer.template.render_generated(messages, tools)
    else:
        text = renderer.template.render(messages, tools, generate=False)

        def render(part: Sequence[ChatMessage], generate: bool) -> str:  # noqa: FBT001
            return renderer.template.render(part, tools, generate=generate)

        spans = renderer.family.assistant_spans(text, messages, render)
    spans = [(start, end) for start, end in spans if start < end]
    if not spans:
        raise RenderFailed("no assistant message in the conversation: nothing to learn from it")
    places = find_contents(
        text, messages, lambda marked: renderer.template.render(marked, tools, generate=False)
    )
    pieces: list[NDArray[np.int32]] = []
    kinds: list[NDArray[np.uint8]] = []
    turns, length, cursor = [], 0, 0
    for start, end in spans:
        if start > cursor:
            token_ids, starts = renderer.tokenizer.encode_with_starts(text[cursor:start])
            pieces.append(token_ids)
            kinds.append(mark_tokens(starts + cursor, places))
            length += len(token_ids)
        reply = renderer.tokenizer.encode(text[start:end])
        pieces.append(reply)
        kinds.append(np.full(len(reply), Provenance.RECORDED, dtype=np.uint8))
        turns.append((length, length + len(reply)))
        length += len(reply)
        cursor = end
    return ConversationRow(np.concatenate(pieces), np.concatenate(kinds), tuple(turns))
