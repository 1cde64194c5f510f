"""Tokens as text, one by one, and the token that a mismatch is about."""

from __future__ import annotations

import io
import random
from pathlib import Path

import msgspec
import pytest
from unit.session.kit import CALL_TEXT, STOP, renderer

from milepost.actors.session.text.mismatch import compare_rows, first_place
from milepost.actors.session.text.spelling import (
    HEAD,
    Place,
    Question,
    Speller,
    Spelling,
    frame,
    pieces_of,
    serve,
    spell,
)

ROW = (
    "<|im_start|>user\nWhat is the pet of kai, naïve 世界 🙂?<|im_end|>\n<|im_start|>assistant\n"
    f"{CALL_TEXT}<|im_end|>"
)


def test_the_pieces_of_a_row_are_its_text() -> None:
    """A character of several tokens stands at the last of them: nothing is lost or doubled."""
    tokenizer = renderer().tokenizer
    token_ids = tokenizer.encode(ROW).tolist()
    pieces = pieces_of(token_ids, tokenizer)
    assert "".join(piece or "" for piece in pieces) == ROW
    assert pieces[0] == "<|im_start|>"
    assert None in pieces


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_at_all_are_spelled(seed: int) -> None:
    """A model under training samples anything: bytes that are no text, ids nobody knows."""
    tokenizer = renderer().tokenizer
    generator = random.Random(seed)
    token_ids = [generator.randrange(tokenizer.vocabulary_size) for _ in range(60)]
    pieces = pieces_of(token_ids, tokenizer)
    assert len(pieces) == len(token_ids)
    spelled, whole = ("".join(p or "" for p in pieces), tokenizer.decode(token_ids))
    assert whole.startswith(spelled.rstrip("\ufffd"))
    assert pieces_of([tokenizer.vocabulary_size + 7, *token_ids[:1]], tokenizer)[0] is None


def place(row_text: str, canonical: str = ROW) -> tuple[Place | None, list[str | None]]:
    """Where the first difference between a row and its canonical text is said to be."""
    tokenizer, family = renderer().tokenizer, renderer().family
    token_ids = tokenizer.encode(row_text).tolist()
    (found, *_) = compare_rows(canonical, token_ids, tokenizer, family)
    question = Question(token_ids=token_ids, end=len(token_ids), mismatch=str(found))
    spelled = spell(question, tokenizer)
    return spelled.mismatch, spelled.pieces


@pytest.mark.parametrize(
    "row_text",
    [
        ROW.replace("user\n", "user\n\n"),
        ROW.replace("pet of kai", "pet of bob"),
        ROW.replace("naïve", "naive"),
        ROW.replace("kai, naïve", "kai, " + "so " * 60 + "naïve"),
        ROW.replace('"arguments": {', '"arguments":{'),
        ROW.replace(STOP, "<|endoftext|>", 1),
    ],
)
def test_a_mismatch_is_found_in_the_row_it_was_told_of(row_text: str) -> None:
    """The certificate has words only; the page marks the very token that they are about."""
    found, pieces = place(row_text)
    assert found is not None
    assert found.start <= found.first < found.end
    start = len("".join(piece or "" for piece in pieces[: found.first]))
    end = start + len(pieces[found.first] or "")
    assert start <= first_place(row_text, ROW) < end


def test_a_mismatch_without_a_place_has_none() -> None:
    """Another number of special tokens is nowhere; a certificate may say anything."""
    assert place(ROW.replace(STOP, "", 1))[0] is None
    tokenizer = renderer().tokenizer
    for words in ("", "not_rendered: no", "assistant_text at segment 99: canonical 'a', row 'b'"):
        question = Question(token_ids=[1, 2], end=2, mismatch=words)
        assert spell(question, tokenizer).mismatch is None


def test_a_part_of_a_row_is_spelled_alone() -> None:
    tokenizer = renderer().tokenizer
    token_ids = tokenizer.encode(ROW).tolist()
    whole = spell(Question(token_ids=token_ids, end=len(token_ids)), tokenizer)
    part = spell(Question(token_ids=token_ids, start=1, end=5), tokenizer)
    assert part.pieces == whole.pieces[1:5]
    assert part.special == [at for at in whole.special if 1 <= at < 5]


def test_the_process_greets_answers_and_ends_with_its_questions(tmp_path: Path) -> None:
    """A folder without a tokenizer is an answer, too: the page says it."""
    answers = io.BytesIO()
    serve(tmp_path, io.BytesIO(), answers)
    (length,) = HEAD.unpack(answers.getvalue()[: HEAD.size])
    told = msgspec.json.decode(answers.getvalue()[HEAD.size :], type=Speller)
    assert len(answers.getvalue()) == HEAD.size + length
    assert "no tokenizer.json in" in told.error
    assert frame(Spelling(pieces=["a", None], special=[]))[HEAD.size :].startswith(b"{")
