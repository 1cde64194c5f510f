"""A model that goes round in circles is told from one that writes tables."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from unit.session.kit import CALL_TEXT, QUESTION, Play, play, renderer

from milepost.actors.session.text.repetition import (
    RATIO_MAX,
    SHORT_BYTES_MAX,
    TAIL_CHARACTERS,
    compression_ratio,
    is_repetitive,
)
from milepost.messages.shared import SamplingParams
from milepost.messages.trajectory import REPETITIVE

CIRCLE = "the pet of kai is the pet of "


def prose(length: int) -> str:
    """Words that a person might have drawn from a hat."""
    generator = random.Random(length)
    words = ("kai", "pet", "owl", "job", "the", "of", "is", "cat", "baker", "town")
    text = ""
    while len(text) < length:
        text += f"{generator.choice(words)}{generator.randrange(1000)} "
    return text[:length]


def judged(text: str) -> bool:
    tokenizer = renderer().tokenizer
    return is_repetitive(tokenizer.encode(text), tokenizer)


@pytest.mark.parametrize(
    ("text", "repetitive"),
    [
        ("", False),
        (CALL_TEXT, False),
        (prose(4000), False),
        (CIRCLE * 40, True),
        (prose(2 * TAIL_CHARACTERS) + CIRCLE * (TAIL_CHARACTERS // len(CIRCLE) + 1), True),
        (CIRCLE * 400 + prose(TAIL_CHARACTERS), False),
    ],
)
def test_only_the_end_tells_whether_a_text_repeats_itself(
    text: str,
    repetitive: bool,  # noqa: FBT001
) -> None:
    """A loop lasts to the end, however long and however sensible the beginning was."""
    assert judged(text) is repetitive


def test_a_text_too_short_to_be_compressed_so_far_is_never_compressed() -> None:
    """The bound is where zlib itself begins to reach the ratio: nothing is overlooked by it."""
    for length in range(1, 200):
        one = "a" * length
        reached = length / len(zlib.compress(one.encode())) > RATIO_MAX
        assert (compression_ratio(one) > RATIO_MAX) is reached


def test_a_short_text_is_judged_by_small_tables_as_by_large_ones() -> None:
    """They cost a tenth, and must not change what is told of a row."""
    generator = random.Random(0)
    for _ in range(300):
        unit = "".join(generator.choices("abcdef {}<>", k=generator.randrange(1, 60)))
        length = generator.randrange(120, SHORT_BYTES_MAX + 100)
        pieces = [unit if generator.random() < 0.8 else prose(9) for _ in range(length)]
        text = "".join(pieces)[:length]
        assert compression_ratio(text) == length / len(zlib.compress(text.encode()))


def test_half_a_surrogate_is_text_like_any_other() -> None:
    assert compression_ratio("\ud83d" * 500) > RATIO_MAX


def threads_work(game: Play) -> None:
    while game.works:
        game.work()


@pytest.mark.parametrize(("reply", "repetitive"), [("kai has an owl", False), (CIRCLE * 30, True)])
def test_a_row_says_whether_it_repeats_itself_whatever_the_prompt_calls_so(
    reply: str,
    repetitive: bool,  # noqa: FBT001
) -> None:
    """Only sampled text counts: the circles of a prompt or of a tool are not the model's."""
    game = play()
    game.open(sampling=SamplingParams(tokens_max=1024))
    question: Any = {**QUESTION, "content": CIRCLE * 30}
    game.chat([question])
    game.sample(reply)
    threads_work(game)
    game.finish()
    threads_work(game)
    assert game.take().trajectory.metadata[REPETITIVE] is repetitive
