"""Row against canonical re-rendering: a diagnostic for people, never a source of tokens.

The whole conversation is rendered once more and compared with the row. Both are cut at special
tokens; the pieces between are compared as decoded text, so another split of the same text into
tokens is no difference. Kinds:

- special_token_count: another number of special tokens;
- special_token_type: another special token at the same place;
- non_assistant_text: other text outside replies, the sign of a broken template or seam;
- assistant_text: other text inside a reply, expected where the model does not write canonically.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.families import Family
    from milepost.actors.session.text.tokenizer import Tokenizer

SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, between `expected` (canonical) and `actual` (the row)."""

    kind: str
    segment: int
    """Index of the piece; -1 for special_token_count."""
    expected: str
    actual: str

    def __str__(self) -> str:
        """As it stands in the certificate."""
        where = "" if self.segment < 0 else f" at segment {self.segment}"
        return (
            f"{self.kind}{where}: canonical {_shown(self.expected, self.actual)}, "
            f"row {_shown(self.actual, self.expected)}"
        )


def compare_rows(
    canonical_text: str, row: Sequence[int], tokenizer: Tokenizer, family: Family
) -> list[Mismatch]:
    """All differences between the row and the conversation rendered canonically.

    Args:
        canonical_text: whole conversation, rendered without a generation prompt.
        row: token ids of the row.
        tokenizer: says which tokens are special.
        family: says how a reply opens, and which tokens may trail.
    """
    expected = _text_segments(without_trailing(canonical_text, tokenizer, family), tokenizer)
    actual = _row_segments(row, tokenizer, family)
    if (count := _other_count(expected, actual)) is not None:
        return [count]
    found = []
    for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if left == right:
            continue
        if isinstance(left, _Special) or isinstance(right, _Special):
            found.append(Mismatch("special_token_type", index, left.text, right.text))
        # A tokenizer may normalise: what the text becomes as tokens is what counts.
        elif tokenizer.decode(tokenizer.encode(left.text).tolist()) != right.text:
            opener = family.assistant_opener
            spoken = all(_opens(side, index, opener) for side in (expected, actual))
            kind = "assistant_text" if spoken else "non_assistant_text"
            found.append(Mismatch(kind, index, left.text, right.text))
    return found


def without_trailing(text: str, tokenizer: Tokenizer, family: Family) -> str:
    """A rendered text without the tokens that say nothing at its end, each taken off whole."""
    tails = tuple(tokenizer.decode([token]) for token in family.trailing_token_ids)
    while tails and text.endswith(tails):
        text = text.removesuffix(next(tail for tail in tails if text.endswith(tail)))
    return text


@dataclass(frozen=True, slots=True)
class _Plain:
    """Text between special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class _Special:
    """A special token."""

    text: str


def _text_segments(text: str, tokenizer: Tokenizer) -> list[_Plain | _Special]:
    """As the tokenizer cuts a text at its special tokens, the longest first."""
    pieces = tokenizer.special_cut.split(text)
    return [
        _Special(piece) if place % 2 else _Plain(piece)
        for place, piece in enumerate(pieces)
        if piece
    ]


def _row_segments(
    row: Sequence[int], tokenizer: Tokenizer, family: Family
) -> list[_Plain | _Special]:
    """A row cut at its special tokens; the tokens that may trail are left out."""
    listed, special = trimmed(list(row), family.trailing_token_ids), tokenizer.special_ids
    cuts = [place for place, token in enumerate(listed) if token in special]
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(listed)]
    parts = [listed[start:end] for start, end in zip(starts, ends, strict=True)]
    texts = tokenizer.decode_all(parts)
    segments: list[_Plain | _Special] = [_Plain(texts[0])] if parts[0] else []
    for cut, part, text in zip(cuts, parts[1:], texts[1:], strict=True):
        segments.append(_Special(tokenizer.special_tokens[listed[cut]]))
        if part:
            segments.append(_Plain(text))
    if segments and isinstance(last := segments[-1], _Plain):
        # A tokenizer may merge what trails with the text before it: `assistant\n` as one token.
        kept = without_trailing(last.text, tokenizer, family)
        segments[-1:] = [_Plain(kept)] if kept else []
    return segments


def _other_count(
    expected: list[_Plain | _Special], actual: list[_Plain | _Special]
) -> Mismatch | None:
    shapes = [[isinstance(one, _Special) for one in side] for side in (expected, actual)]
    if shapes[0] == shapes[1]:
        return None
    told = tuple(f"{sum(shape)} special tokens" for shape in shapes)
    return Mismatch("special_token_count", -1, *told)


def _opens(segments: list[_Plain | _Special], index: int, opener: str) -> bool:
    before, content = segments[index - 1] if index else None, segments[index]
    if not opener or not isinstance(before, _Special):
        return False
    return (before.text + content.text).startswith(opener)


def trimmed(token_ids: list[int], trailing: frozenset[int]) -> list[int]:
    """A row without the tokens at its end that say nothing."""
    end = len(token_ids)
    while end and token_ids[end - 1] in trailing:
        end -= 1
    return token_ids[:end]


def first_place(text: str, other: str) -> int:
    """Where two texts differ first; the length of the shorter one when it begins the other."""
    return next(
        (at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
        min(len(text), len(other)),
    )


def _shown(text: str, other: str) -> str:
    """`text` from a little before its first difference to `other`."""
    place = first_place(text, other)
    start = max(0, place - SHOWN_CHARS // 3)
    cut = text[start : start + SHOWN_CHARS]
    return f"{'...' if start else ''}{cut!r}{'...' if start + SHOWN_CHARS < len(text) else ''}"
