"""Token ids as text for whoever must not load a tokenizer itself: a process that is asked.

`python -P -m milepost.actors.session.text.spelling FOLDER` reads questions from stdin and writes
one answer for each to stdout; a frame is a little-endian uint32 length and so many bytes of JSON.
The first frame it writes is its greeting: a `Speller`. It ends with its standard input.
"""

from __future__ import annotations

import ast
import os
import re
import struct
import sys
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from milepost.actors.session.text.mismatch import first_place
from milepost.actors.session.text.tokenizer import Tokenizer, load_tokenizer

HEAD: Final = struct.Struct("<I")
FRAME_BYTES_MAX: Final = 64 << 20
"""A row of a million ids in digits is a tenth of it."""
UNFINISHED: Final = "\ufffd"
"""What decoders write for the bytes of half a character."""
TOKENS_OF_A_CHARACTER_MAX: Final = 8
"""UTF-8 has four bytes at most; what is unfinished after so many tokens never ends."""
LITERAL: Final = r"""(\.\.\.)?('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?:\.\.\.)?"""
MISMATCH: Final = re.compile(
    rf"(?:special_token_type|(?:non_)?assistant_text) at segment (\d+): canonical {LITERAL}, "
    rf"row {LITERAL}"
)
"""The text of a `Mismatch` that names a place."""


class Question(Struct, frozen=True, kw_only=True):
    """What is asked about one row."""

    token_ids: list[int]
    start: int = 0
    end: int
    """Tokens [start, end) are to be spelled."""
    mismatch: str = ""
    """`canonical_mismatch` of its certificate, to be found in the row."""


class Place(Struct, frozen=True):
    """Of a mismatch in a row."""

    start: int
    """First token of the segment that differs."""
    end: int
    """Behind its last token."""
    first: int
    """Token in it with the first character that differs."""


class Spelling(Struct, frozen=True, kw_only=True):
    """The row as text."""

    pieces: list[str | None]
    """Text of each token asked for; together, their text. None for a token that has none by itself:
    bytes of a character that a later one completes, or an id that the tokenizer does not know."""
    special: list[int]
    """Places in the row of special tokens among them."""
    mismatch: Place | None = None
    """Where the row differs from its canonical rendering; None when the mismatch names no place."""


class Speller(Struct, frozen=True, kw_only=True):
    """The greeting: whose words these are, or why there are none."""

    content_hash: str = ""
    """xxh3-128 hex of tokenizer.json, as in a certificate."""
    error: str = ""


def spell(question: Question, tokenizer: Tokenizer) -> Spelling:
    """The answer to one question."""
    start, end = question.start, question.end
    special = [i for i, token in enumerate(question.token_ids) if token in tokenizer.special_ids]
    return Spelling(
        pieces=pieces_of(question.token_ids[start:end], tokenizer),
        special=[place for place in special if start <= place < end],
        mismatch=place_of(question.mismatch, question.token_ids, special, tokenizer),
    )


def pieces_of(token_ids: list[int], tokenizer: Tokenizer) -> list[str | None]:
    """Text of each token, as `Spelling.pieces`.

    A token's text is what the row's text grows by with it, seen together with the tokens before it
    that also made text at once: tokenizers join words and bytes across tokens.
    """
    pieces: list[str | None] = []
    start, known, before = 0, 0, ""
    for end in range(1, len(token_ids) + 1):
        text = tokenizer.decode(token_ids[start:end])
        is_whole = len(text) > len(before) and not text.endswith(UNFINISHED)
        if not is_whole and end - known < TOKENS_OF_A_CHARACTER_MAX:
            pieces.append(None)
            continue
        pieces.append(text[len(before) :] or None)
        start, known = known, end
        before = tokenizer.decode(token_ids[start:end])
    return pieces


def place_of(
    mismatch: str, token_ids: list[int], special: list[int], tokenizer: Tokenizer
) -> Place | None:
    """The tokens that a mismatch is about.

    Segments are as in `milepost.actors.session.text.mismatch`: each special token is one, and so
    is what stands between two, unless that is nothing. Both sides are told from a little before
    their first difference on.

    Args:
        mismatch: text of a `Mismatch`.
        token_ids: the row.
        special: places of special tokens in it.
        tokenizer: of the row.
    """
    found = MISMATCH.fullmatch(mismatch)
    number = int(found[1]) if found else 0
    segments = _segments(special, len(token_ids))
    if found is None or number >= len(segments):
        return None
    start, end = segments[number]
    canonical, row = ast.literal_eval(found[3]), ast.literal_eval(found[5])
    pieces = pieces_of(token_ids[start:end], tokenizer)
    ends = list(accumulate(len(piece or "") for piece in pieces))
    # Where the excerpt lies in the segment: at its beginning, or where its words stand.
    before = max(0, tokenizer.decode(token_ids[start:end]).find(row)) if found[4] else 0
    first = bisect_right(ends, before + first_place(canonical, row))
    return Place(start, end, start + min(first, end - start - 1))


def _segments(special: list[int], length: int) -> list[tuple[int, int]]:
    segments: list[tuple[int, int]] = []
    start = 0
    for cut in [*special, length]:
        if start < cut:
            segments.append((start, cut))
        if cut < length:
            segments.append((cut, cut + 1))
        start = cut + 1
    return segments


def frame(value: Struct) -> bytes:
    """One value as it goes through the pipe."""
    body = msgspec.json.encode(value)
    return HEAD.pack(len(body)) + body


def serve(folder: Path, questions: BinaryIO, answers: BinaryIO) -> None:
    """Greet, then answer until there are no more questions."""
    try:
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError) as error:
        answers.write(frame(Speller(error=str(error))))
        answers.flush()
        return
    answers.write(frame(Speller(content_hash=tokenizer.content_hash)))
    answers.flush()
    decoder = msgspec.json.Decoder(Question)
    while len(head := questions.read(HEAD.size)) == HEAD.size:
        (length,) = HEAD.unpack(head)
        assert length <= FRAME_BYTES_MAX, f"a question of {length} bytes"
        answers.write(frame(spell(decoder.decode(questions.read(length)), tokenizer)))
        answers.flush()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
