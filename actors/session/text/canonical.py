"""Whether a finished row is what the template would write, cheaply when it is.

The honest comparison renders the whole conversation once more (`mismatch`). Where a template was
proven to append only, and to leave replies as they were (`proof`, without a note), a row is
canonical exactly when each reply is: prompts and deltas are its own rendering. A reply is canonical
or not whatever conversation it stands in, so the answer is remembered. Every 16th conversation that
looks canonical is rendered whole all the same; when that ever tells otherwise, all others are, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from milepost.actors.session.text.mismatch import compare_rows, without_trailing
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.row import TokenRow
    from milepost.actors.session.text.rendering import Renderer
    from milepost.messages.shared import ChatMessage

REMEMBERED_MAX: Final = 4096
REMEMBERED_BYTES_MAX: Final = 4096
"""Longer replies are never said twice."""
AUDITED_EVERY: Final = 16
ASKED: Final[ChatMessage] = {"role": "user", "content": "one"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between a row and its canonical rendering."""

    first: str | None = None
    """The first difference, for people."""
    kinds: tuple[str, ...] = ()
    """Of all differences, each once."""


SAME: Final = Comparison()


class Canon:
    """Compares the rows of one actor; shared by its threads.

    Args:
        renderer: of the model.
        appends_only: the template was proven to append only and to rewrite nothing.
    """

    def __init__(self, renderer: Renderer, *, appends_only: bool = False) -> None:
        self._renderer = renderer
        self._appends_only = appends_only
        self._known: dict[bytes, bool] = {}
        self._looked_canonical = 0

    def compare(
        self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]], row: TokenRow
    ) -> Comparison:
        """All differences between a row and the conversation rendered as a whole.

        A last reply that was cut off is compared as if it had ended: nobody sampled its end.
        """
        looks_canonical = self._appends_only and self._holds(messages, row)
        if looks_canonical:
            self._looked_canonical += 1
            if self._looked_canonical % AUDITED_EVERY:
                return SAME
        found = self._whole(messages, tools, row)
        if looks_canonical and found.kinds:
            self._appends_only = False
        return found

    def _whole(
        self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]], row: TokenRow
    ) -> Comparison:
        renderer = self._renderer
        token_ids = row.token_ids.tolist()
        if row.turns and row.turns[-1].finish_reason is not FinishReason.STOP:
            token_ids.append(renderer.family.stop_token_ids[0])
        try:
            text = renderer.template.render(messages, tools, generate=False)
        except RenderFailed as error:
            return Comparison(f"not_rendered: {error}", ("not_rendered",))
        found = compare_rows(text, token_ids, renderer.tokenizer, renderer.family)
        kinds = tuple(dict.fromkeys(each.kind for each in found))
        return Comparison(str(found[0]), kinds) if found else SAME

    def _holds(self, messages: Sequence[ChatMessage], row: TokenRow) -> bool:
        """Each reply ended by itself and reads as the template would write its message."""
        replies = [message for message in messages if message["role"] == "assistant"]
        if len(replies) != len(row.turns):
            return False
        sampled = row.token_ids
        for turn, message in zip(row.turns, replies, strict=True):
            if turn.finish_reason is not FinishReason.STOP:
                return False
            token_ids = sampled[turn.prompt_end : turn.end]
            name = msgspec.msgpack.encode((message, token_ids.tobytes()))
            known = self._known.get(name)
            if known is None:
                known = self._is_canonical(message, token_ids.tolist())
                if len(name) <= REMEMBERED_BYTES_MAX:
                    self._remember(name, known)
            if not known:
                return False
        return self._are_joined_canonically(row)

    def _are_joined_canonically(self, row: TokenRow) -> bool:
        """A seam that trims or replaces a stop token leaves a reply without its own end."""
        stops = self._renderer.family.stop_token_ids
        return all(int(row.token_ids[turn.end - 1]) in stops for turn, _ in pairwise(row.turns))

    def _remember(self, name: bytes, known: bool) -> None:  # noqa: FBT001
        # Threads may lose each other's entries here, never change one.
        if len(self._known) >= REMEMBERED_MAX:
            self._known = {}
        self._known[name] = known

    def _is_canonical(self, message: ChatMessage, token_ids: list[int]) -> bool:
        template, tokenizer = self._renderer.template, self._renderer.tokenizer
        try:
            prompt = template.render([ASKED], generate=True)
            whole = template.render([ASKED, message], generate=False)
        except RenderFailed:
            return False
        if not whole.startswith(prompt):
            return False
        text = tokenizer.decode(token_ids)
        written = whole[len(prompt) :]
        if text not in (written, without_trailing(written, tokenizer, self._renderer.family)):
            return False
        # A reply may spell a special token out; then it is not the same row.
        specials = sum(token in tokenizer.special_ids for token in token_ids)
        spelled = sum(text.count(special) for special in tokenizer.special_tokens.values())
        return specials == spelled
