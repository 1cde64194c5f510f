"""The slow, obvious comparison of a row with its canonical rendering: token by token."""

from __future__ import annotations

from milepost.actors.session.families import Family
from milepost.actors.session.text.mismatch import Mismatch, trimmed
from milepost.actors.session.text.tokenizer import Tokenizer

HEAD_TOKENS = 20
"""How far into a piece the assistant's opening is looked for."""


def compare_tokens(
    canonical: list[int], row: list[int], tokenizer: Tokenizer, family: Family
) -> list[Mismatch]:
    """All differences, found by tokenizing both sides."""
    expected = _segments(trimmed(canonical, family.trailing_token_ids), tokenizer.special_ids)
    actual = _segments(trimmed(row, family.trailing_token_ids), tokenizer.special_ids)
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
