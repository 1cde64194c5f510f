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

HEAD_TOKENS: Final = 20
"""How far into a piece the assistant's opening is looked for."""
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
    text = tokenizer.decode(row)
    trailing = "".join(tokenizer.decode([token]) for token in family.trailing_token_ids)
    specials = sum(token in tokenizer.special_ids for token in row)
    written = sum(text.count(special) for special in tokenizer.special_tokens.values())
    if specials == written and canonical_text.rstrip(trailing) == text.rstrip(trailing):
        return []
    canonical = tokenizer.encode(canonical_text).tolist()
    return compare_tokens(canonical, list(row), tokenizer, family)


def compare_tokens(
    canonical: list[int], row: list[int], tokenizer: Tokenizer, family: Family
) -> list[Mismatch]:
    """The same, for token ids."""
    expected = _segments(_trimmed(canonical, family.trailing_token_ids), tokenizer.special_ids)
    actual = _segments(_trimmed(row, family.trailing_token_ids), tokenizer.special_ids)
    shape = [isinstance(segment, int) for segment in expected]
    if shape != [isinstance(segment, int) for segment in actual]:
        counts = tuple(
            f"{sum(isinstance(s, int) for s in side)} special tokens" for side in (expected, actual)
        )
        return [Mismatch("special_token_count", -1, *counts)]
    found = []
    for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if isinstance(left, int) or isinstance(right, int):
            if left != right:
                texts = (tokenizer.decode([side]) for side in (left, right))  # type: ignore[list-item]
                found.append(Mismatch("special_token_type", index, *texts))
            continue
        expected_text, actual_text = tokenizer.decode(left), tokenizer.decode(right)
        if expected_text == actual_text:
            continue
        spoken = all(
            _opens_reply(side, index, tokenizer, family.assistant_opener)
            for side in (expected, actual)
        )
        kind = "assistant_text" if spoken else "non_assistant_text"
        found.append(Mismatch(kind, index, expected_text, actual_text))
    return found


def _trimmed(token_ids: list[int], trailing: frozenset[int]) -> list[int]:
    end = len(token_ids)
    while end and token_ids[end - 1] in trailing:
        end -= 1
    return token_ids[:end]


def _segments(token_ids: list[int], special: frozenset[int]) -> list[int | list[int]]:
    segments: list[int | list[int]] = []
    for token in token_ids:
        if token in special:
            segments.append(token)
        elif segments and isinstance(tail := segments[-1], list):
            tail.append(token)
        else:
            segments.append([token])
    return segments


def _opens_reply(
    segments: list[int | list[int]], index: int, tokenizer: Tokenizer, opener: str
) -> bool:
    if not index or not opener:
        return False
    before, content = segments[index - 1], segments[index]
    if not isinstance(before, int) or isinstance(content, int):
        return False
    return tokenizer.decode([before, *content[:HEAD_TOKENS]]).startswith(opener)


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
