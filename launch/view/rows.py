"""One row of a trajectory as blocks of tokens: who said what, under which weights, how surely."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from milepost.launch.view.speller import Place
from milepost.messages.bulk import Bulk
from milepost.messages.trajectory import Provenance, Trajectory

TOKENS_MAX: Final = 3000
"""On one page."""
STEPS: Final = (0.002, 0.01, 0.05, 0.2, 1.0)
"""Upper bounds of the classes of |trainer - engine|, nats; the sixth is above the last."""
WHO: Final = {
    Provenance.TEMPLATE: "template",
    Provenance.INPUT: "user",
    Provenance.TOOL: "tool",
    Provenance.SAMPLED: "sampled",
    Provenance.RECORDED: "recorded",
}
REPLIES: Final = frozenset({Provenance.SAMPLED, Provenance.RECORDED})
COLOURS: Final = {
    "who": "who produced it",
    "version": "weight version",
    "difference": "log-prob difference",
    "mask": "loss mask",
}
VERSION_COLOURS: Final = 6


class Token(Struct, frozen=True, kw_only=True):
    """One token as it is shown."""

    at: int
    """Place in the row."""
    token_id: int
    text: str
    """What is shown; `·` for a token that is only a part of a character."""
    classes: str
    """Of its element: `w` who, `v` version, `d` difference, `m` mask, `x` mismatch."""
    logprob: float | None = None
    trainer: float | None = None
    version: int | None = None


class Block(Struct, frozen=True, kw_only=True):
    """Neighbouring tokens of one producer."""

    who: str
    turn: int | None
    """Number of the reply, from 1."""
    finish: str
    """Why the reply ended; empty when it is none, or ends on a later page."""
    versions: tuple[int, ...]
    tokens: list[Token]


class RowPage(Struct, frozen=True, kw_only=True):
    """The tokens [start, end) of a row, and what its legends name."""

    start: int
    end: int
    length: int
    blocks: list[Block]
    versions: list[int]
    """Of the whole row, ascending; a version's colour is its place here."""


class RowText(Struct, frozen=True, kw_only=True):
    """What the tokenizer said of the row, or why it said nothing."""

    pieces: list[str | None] | None = None
    """Of the tokens from `start` on."""
    start: int = 0
    special: frozenset[int] = frozenset()
    mismatch: Place | None = None
    why_not: str = ""


def values_of(bulk: Bulk) -> Sequence[float]:
    """The values of an array of a row, without numpy and without a copy."""
    match bulk.dtype:
        case "int32":
            return bulk.data.cast("i")
        case "float32":
            return bulk.data.cast("f")
    assert bulk.dtype == "uint8", f"an array of a row is int32, float32 or uint8, not {bulk.dtype}"
    return bulk.data


def trainer_logprobs(row: Trajectory, logprobs: Bulk | None) -> dict[int, float]:
    """Place in the row -> log-prob under the trainer, nats, where it has computed one.

    Args:
        row: S sampled tokens.
        logprobs: float32 [S], NaN where the trainer has none.
    """
    if logprobs is None:
        return {}
    mask, provenance = values_of(row.loss_mask), values_of(row.provenance)
    places = [
        at
        for at, (trained, who) in enumerate(zip(mask, provenance, strict=True))
        if trained or who in REPLIES
    ]
    found = zip(places, values_of(logprobs), strict=True)
    return {at: value for at, value in found if not math.isnan(value)}


def page_of(
    row: Trajectory, trainer: dict[int, float], text: RowText, start: int, end: int
) -> RowPage:
    """The tokens [start, end) of a row, put together by who produced them."""
    length = row.token_ids.shape[0]
    start, end = max(0, start), min(end, length)
    versions = sorted({span.version for span in row.spans})
    tokens = _tokens(row, trainer, text, versions, range(start, end))
    blocks = list(_blocks(row, tokens, start))
    return RowPage(start=start, end=end, length=length, blocks=blocks, versions=versions)


def _tokens(
    row: Trajectory,
    trainer: dict[int, float],
    text: RowText,
    versions: list[int],
    places: range,
) -> list[Token]:
    ids, mask = values_of(row.token_ids), values_of(row.loss_mask)
    logprobs, provenance = values_of(row.logprobs), values_of(row.provenance)
    version_of = _versions(row, places)
    odd = range(text.mismatch.start, text.mismatch.end) if text.mismatch else range(0)
    tokens = []
    for at in places:
        version, theirs = version_of.get(at), trainer.get(at)
        sampled = provenance[at] == Provenance.SAMPLED
        logprob = logprobs[at] if sampled else None
        classes = [f"w{provenance[at]:.0f}", "m1" if mask[at] else "m0"]
        if version is not None:
            classes.append(f"v{versions.index(version) % VERSION_COLOURS}")
        if theirs is not None and logprob is not None:
            classes.append(difference_class(theirs - logprob))
        if at in text.special:
            classes.append("s")
        if at in odd:
            classes.append("x")
        tokens.append(
            Token(
                at=at,
                token_id=int(ids[at]),
                text=_text(text, at, int(ids[at])),
                classes=" ".join(classes),
                logprob=logprob,
                trainer=theirs,
                version=version,
            )
        )
    return tokens


def _text(text: RowText, at: int, token_id: int) -> str:
    if text.pieces is None:
        return f"{token_id} "
    piece = text.pieces[at - text.start]
    return "·" if piece is None else piece


def _versions(row: Trajectory, places: range) -> dict[int, int]:
    return {
        at: span.version
        for span in row.spans
        for at in range(max(span.start, places.start), min(span.end, places.stop))
    }


def difference_class(difference: float) -> str:
    """`d0` for none worth a name, else `p` (trainer finds it likelier) or `n`, 1 to 5."""
    size = bisect_right(STEPS, abs(difference))
    if size == 0:
        return "d0"
    return f"{'p' if difference > 0 else 'n'}{size}"


def _blocks(row: Trajectory, tokens: list[Token], start: int) -> Iterator[Block]:
    provenance = values_of(row.provenance)
    ends = [turn.end for turn in row.turns]
    # A long conversation has thousands of turns, and a page hundreds of tokens.
    cuts = {*ends, *(turn.prompt_end for turn in row.turns)}
    begin = 0
    for at in range(1, len(tokens) + 1):
        place = start + at
        is_cut = at == len(tokens) or provenance[place] != provenance[place - 1] or place in cuts
        if is_cut:
            yield _block(row, tokens[begin:at], int(provenance[start + begin]), ends)
            begin = at


def _block(row: Trajectory, tokens: list[Token], provenance: int, ends: list[int]) -> Block:
    who = Provenance(provenance)
    is_reply = who in REPLIES
    number = bisect_right(ends, tokens[0].at)
    turn = row.turns[number] if is_reply and number < len(row.turns) else None
    is_end = turn is not None and turn.end == tokens[-1].at + 1
    found = dict.fromkeys(token.version for token in tokens)
    return Block(
        who=WHO[who],
        turn=None if turn is None else number + 1,
        finish=turn.finish_reason.value if turn is not None and is_end else "",
        versions=tuple(version for version in found if version is not None),
        tokens=tokens,
    )
