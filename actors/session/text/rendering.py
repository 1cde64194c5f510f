"""Messages to tokens: the first prompt of a conversation, and the delta of each later turn.

What was sampled is never rendered again. A later turn renders its new messages alone, after a
dummy base: delta = render(base + new messages, generation prompt) minus render(base), which must be
a string prefix. So the cost of a turn grows with its new text only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from xxhash import xxh3_128_digest

from milepost.actors.session.text.canonical import Canon
from milepost.actors.session.text.provenance import find_contents, mark_spans
from milepost.actors.session.text.template import RenderFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.session.families import Family
    from milepost.actors.session.text.template import ChatTemplate
    from milepost.actors.session.text.tokenizer import Tokenizer
    from milepost.messages.shared import ChatMessage

TAIL_CHARS: Final = 64
REMEMBERED_FIRST_BYTES_MAX: Final = 1 << 16
REMEMBERED_DELTA_BYTES_MAX: Final = 1024
"""Members of a group share their first prompt, and short tool results come again and again."""
REMEMBERED_BYTES_MAX: Final = 1 << 22
"""Of all pieces together."""
_PIECE_BYTES: Final = 512
"""What a piece costs beside its tokens."""
_FIRST: Final = b"[null,"
"""How the name of a first prompt begins."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rendered text as tokens; the arrays are shared and read-only."""

    token_ids: NDArray[np.int32]
    """[N]"""
    provenance: NDArray[np.uint8]
    """[N] of `Provenance`"""
    tail: str
    """Last characters of the text: a reply's parser asks whether reasoning was opened."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        return _PIECE_BYTES + self.token_ids.nbytes + self.provenance.nbytes


class Renderer:
    """Tokenizer, template and family of one model.

    A text to render is named by its JSON, `first` or `delta`. The same name renders the same
    `Piece`, so pieces are remembered under it. `render` may run in any thread, `recall` and
    `remember` belong to one.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, family: Family) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.family = family
        self.canon = Canon(self)
        self._pieces: dict[bytes, Piece] = {}
        """By the digest of their names, the one asked for longest ago first."""
        self._pieces_bytes = 0
        # A family has very few bases, unless its template looks at tool calls.
        self._base_text = lru_cache(maxsize=64)(self._render_base)

    def first(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> bytes:
        """Name of the whole prompt of a conversation's first turn."""
        return msgspec.json.encode((None, messages, tools))

    def delta(
        self,
        appended: Sequence[ChatMessage],
        tool_calls: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
    ) -> bytes:
        """Name of what the new messages and the generation prompt add after a reply.

        Args:
            appended: messages after the reply, perhaps none.
            tool_calls: of that reply.
            tools: of the conversation.
        """
        base = self.family.delta_base(tool_calls)
        return msgspec.json.encode((base, appended, tools if self.family.delta_takes_tools else ()))

    def recall(self, text: bytes) -> Piece | None:
        """The piece, if it was rendered lately."""
        name = xxh3_128_digest(text)
        piece = self._pieces.pop(name, None)
        if piece is not None:
            self._pieces[name] = piece
        return piece

    def remember(self, text: bytes, piece: Piece) -> None:
        """Keep a piece that may come again; those not asked for longest make room."""
        is_first = text.startswith(_FIRST)
        if len(text) > (REMEMBERED_FIRST_BYTES_MAX if is_first else REMEMBERED_DELTA_BYTES_MAX):
            return
        name = xxh3_128_digest(text)
        if name in self._pieces:
            return
        self._pieces[name] = piece
        self._pieces_bytes += piece.num_bytes
        while self._pieces_bytes > REMEMBERED_BYTES_MAX:
            self._pieces_bytes -= self._pieces.pop(next(iter(self._pieces))).num_bytes

    def render(self, text: bytes) -> Piece:
        """Tokens of the text that `first` or `delta` named, each with what it stands for.

        Raises:
            RenderFailed: the template refuses the messages, or renders the base differently when
                something follows it.
        """
        base, messages, tools = msgspec.json.decode(text)
        written = self._written(base, messages, tools)
        contents = find_contents(
            written, messages, lambda marked: self._rendered(base, marked, tools)
        )
        places = [place for start, end, _kind in contents for place in (start, end)]
        token_ids, tokens = self.tokenizer.encode_with_places(written, places)
        kinds = [kind for _start, _end, kind in contents]
        spans = list(zip(tokens[::2], tokens[1::2], kinds, strict=True))
        provenance = mark_spans(len(token_ids), spans)
        token_ids.flags.writeable = False
        provenance.flags.writeable = False
        return Piece(token_ids, provenance, written[-TAIL_CHARS:])

    def text(self, text: bytes) -> str:
        """What `first` or `delta` named, as text.

        Raises:
            RenderFailed: as `render`.
        """
        base, messages, tools = msgspec.json.decode(text)
        return self._written(base, messages, tools)

    def _written(
        self,
        base: Sequence[ChatMessage] | None,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
    ) -> str:
        self.template.check_instructions(messages, tools, is_begun=base is not None)
        return self._rendered(base, messages, tools)

    def _rendered(
        self,
        base: Sequence[ChatMessage] | None,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
    ) -> str:
        if base is None:
            return self.template.render(messages, tools, generate=True)
        return self._delta_text(base, messages, tools)

    def check(self) -> None:
        """Prove on a small conversation that the template only appends, with every role.

        Raises:
            RenderFailed: it does not, for the role it names.
        """
        asked: ChatMessage = {"role": "user", "content": "one"}
        self.render(self.first([asked], ()))
        for role in sorted(self.family.appended_roles - {"system"}):
            message: ChatMessage = {"role": role, "content": "two"}
            text = self.delta([message], (), ())
            if not self.render(text).tail:
                raise RenderFailed(f"the template renders nothing for a {role} message")

    def _delta_text(
        self,
        base: Sequence[ChatMessage],
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
    ) -> str:
        prefix = self._base_text(msgspec.json.encode((base, tools)))
        whole = self.template.render([*base, *messages], tools, generate=True)
        if not whole.startswith(prefix):
            place = next(
                (at for at, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b),
                len(whole),
            )
            roles = [message["role"] for message in messages]
            raise RenderFailed(
                f"the template is not append-only for {roles}: before them it wrote "
                f"{prefix[place : place + 40]!r}, with them {whole[place : place + 40]!r}; "
                f"choose another family than {self.family.name}, or a template that only appends"
            )
        return whole[len(prefix) :]

    def _render_base(self, text: bytes) -> str:
        base, tools = msgspec.json.decode(text)
        return self.template.render(base, tools, generate=False)
