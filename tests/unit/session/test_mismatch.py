"""The canonical comparison: what differs is named by kind and place, and changes nothing."""

from __future__ import annotations

import random

import pytest
from unit.session.family_kit import family_renderer
from unit.session.kit import CALL_TEXT, STOP, renderer
from unit.session.slow_mismatch import compare_tokens

from milepost.actors.session.text.mismatch import (
    Mismatch,
    compare_rows,
    without_trailing,
)

CANONICAL = (
    "<|im_start|>user\nWhat is the pet of kai?<|im_end|>\n<|im_start|>assistant\n"
    f"{CALL_TEXT}<|im_end|>\n"
)


def compare(row_text: str, canonical: str = CANONICAL) -> list[Mismatch]:
    """Differences of a row with this text."""
    tokenizer, family = renderer().tokenizer, renderer().family
    return compare_rows(canonical, tokenizer.encode(row_text).tolist(), tokenizer, family)


def test_a_row_that_stops_before_the_last_newline_is_canonical() -> None:
    """The model stops there; the template writes on."""
    assert compare(CANONICAL) == []
    assert compare(CANONICAL.rstrip("\n")) == []


@pytest.mark.parametrize(
    ("row_text", "kind", "segment"),
    [
        (CANONICAL.replace(STOP, "", 1), "special_token_count", -1),
        (CANONICAL.replace(STOP, "<|endoftext|>", 1), "special_token_type", 2),
        (CANONICAL.replace("pet of kai", "pet of bob"), "non_assistant_text", 1),
        (CANONICAL.replace("user\n", "user\n\n"), "non_assistant_text", 1),
        (CANONICAL.replace('"arguments": {', '"arguments":{'), "assistant_text", 5),
    ],
)
def test_each_kind_of_difference_is_told_apart(row_text: str, kind: str, segment: int) -> None:
    """Only the last is expected of a model; the others mean a broken template or seam."""
    found = compare(row_text)
    assert [(each.kind, each.segment) for each in found] == [(kind, segment)]
    assert str(found[0]).startswith(kind)


def test_the_first_differing_place_is_readable() -> None:
    """A person sees both texts from a little before the difference."""
    (found,) = compare(CANONICAL.replace("pet of kai", "pet of bob"))
    assert str(found) == (
        r"non_assistant_text at segment 1: canonical ...'\nWhat is the pet of kai?', "
        r"row ...'\nWhat is the pet of bob?'"
    )


def test_another_split_of_the_same_text_is_no_difference() -> None:
    """A model may sample `k` and `ai`; the text is the same, and so is what people read."""
    tokenizer, family = renderer().tokenizer, renderer().family
    canonical = tokenizer.encode(CANONICAL).tolist()
    place = canonical.index(tokenizer.token_id("kai"))
    pieces = [tokenizer.token_id(character) for character in "kai"]
    assert None not in pieces
    row = [*canonical[:place], *pieces, *canonical[place + 1 :]]
    assert compare_rows(CANONICAL, row, tokenizer, family) == []
    assert compare_tokens(canonical, row, tokenizer, family) == []


@pytest.mark.parametrize("seed", range(40))
def test_comparing_texts_finds_what_comparing_tokens_finds(seed: int) -> None:
    """The canonical side is never tokenized; the answer is that of tokenizing it."""
    tokenizer, family = renderer().tokenizer, renderer().family
    generator = random.Random(seed)
    words = [
        "<|im_start|>",
        "assistant\n",
        "user\n",
        "kai",
        " pet",
        "\n",
        STOP,
        "🍎",
        "ü",
        CALL_TEXT,
    ]
    canonical = [generator.choice(words) for _ in range(30)]
    row = list(canonical)
    for _ in range(generator.randint(0, 3)):
        row[generator.randrange(len(row))] = generator.choice(words)
    token_ids = tokenizer.encode("".join(row)).tolist()
    text = "".join(canonical)
    slow = compare_tokens(tokenizer.encode(text).tolist(), token_ids, tokenizer, family)
    assert compare_rows(text, token_ids, tokenizer, family) == slow


def test_text_that_only_spells_a_special_token_is_not_one() -> None:
    """The row has the characters, the canonical rendering the token: not the same row."""
    tokenizer, family = renderer().tokenizer, renderer().family
    canonical = tokenizer.encode(CANONICAL).tolist()
    spelled = [tokenizer.token_id(character) for character in STOP]
    assert None not in spelled
    place = canonical.index(tokenizer.token_id(STOP))
    row = [*canonical[:place], *spelled, *canonical[place + 1 :]]
    assert tokenizer.decode(row) == CANONICAL
    (found,) = compare_rows(CANONICAL, row, tokenizer, family)
    assert found.kind == "special_token_count"


def test_trailing_tokens_are_taken_off_whole() -> None:
    """Not their characters: the end of a reply is no part of them, however it is spelled."""
    made = family_renderer("deepseek_v4")
    text = "<｜User｜>a<｜Assistant｜>sit<｜end▁of▁sentence｜>"
    opened = f"{text}<｜Assistant｜>"
    assert without_trailing(opened, made.tokenizer, made.family) == text
    row = made.tokenizer.encode(opened).tolist()
    assert compare_rows(text, row, made.tokenizer, made.family) == []
