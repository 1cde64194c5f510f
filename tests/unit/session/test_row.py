"""The token row: what was sampled stays, and every hash can be derived again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from unit.session.kit import weights_used

from milepost.actors.session.families import Seam
from milepost.actors.session.reply import SampledReply
from milepost.actors.session.row import TokenRow
from milepost.actors.session.text.rendering import Piece
from milepost.messages.shared import FinishReason, VersionSpan
from milepost.messages.trajectory import Provenance

STOP, OBSERVATION, NEWLINE = 99, 98, 10


def piece(*token_ids: int) -> Piece:
    """Prompt text of these tokens, all of them a user's."""
    kinds = np.full(len(token_ids), Provenance.INPUT, dtype=np.uint8)
    return Piece(np.array(token_ids, dtype=np.int32), kinds, "")


def reply(*token_ids: int, versions: tuple[tuple[int, int], ...] = ()) -> SampledReply:
    """A reply; `versions` are (tokens, version) in order, version 1 when there are none."""
    spans, start = [], 0
    for count, version in versions or ((len(token_ids), 1),):
        spans.append(VersionSpan(start=start, end=start + count, version=version))
        start += count
    return SampledReply(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=-np.array(token_ids, dtype=np.float32),
        spans=tuple(spans),
        finish_reason=FinishReason.STOP,
        engine="engine-0",
    )


def prefix_hash(token_ids: list[int]) -> str:
    """What anybody else would compute."""
    return str(xxhash.xxh3_128_hexdigest(np.array(token_ids, dtype="<i4").tobytes()))


def test_a_row_is_prompts_and_replies_in_order() -> None:
    """Two turns with the newline that the model does not sample between them."""
    row = TokenRow()
    row.commit(0, Seam(), piece(1, 2, 3), reply(11, STOP))
    assert row.last_token(1) == STOP
    seam = Seam(insert=(NEWLINE,))
    assert row.prompt(1, seam, piece(4)).tolist() == [1, 2, 3, 11, STOP, NEWLINE, 4]
    assert row.length == 5, "a prompt is made beside the row"
    row.commit(1, seam, piece(4), reply(12, STOP))
    row.validate()
    assert row.token_ids.tolist() == [1, 2, 3, 11, STOP, NEWLINE, 4, 12, STOP]
    assert row.provenance.tolist() == [1, 1, 1, 3, 3, 0, 1, 3, 3]
    assert row.logprobs.tolist() == [0, 0, 0, -11, -STOP, 0, 0, -12, -STOP]
    assert [turn.prefix_hash for turn in row.turns] == [
        prefix_hash(row.token_ids[:5].tolist()),
        prefix_hash(row.token_ids.tolist()),
    ]


def test_version_spans_are_merged_where_they_touch() -> None:
    """An engine may report one span for each decoding step; a row needs one for each version."""
    row = TokenRow()
    row.commit(0, Seam(), piece(1), reply(5, 6, 7, 8, versions=((1, 3), (1, 3), (2, 4))))
    row.commit(1, Seam(), piece(2), reply(9, versions=((1, 4),)))
    row.validate()
    assert [(span.start, span.end, span.version) for span in row.spans] == [
        (1, 3, 3),
        (3, 5, 4),
        (6, 7, 4),
    ]


def test_a_retry_replaces_the_newest_turn_and_nothing_else() -> None:
    """The first turn is bit for bit what it was, its hash too; the old reply leaves no token."""
    row = TokenRow()
    row.commit(0, Seam(), piece(1, 2), reply(11, STOP))
    first = row.turns[0]
    row.commit(1, Seam(), piece(3), reply(12, 13, 14, STOP))
    row.commit(1, Seam(), piece(4, 5), reply(15, STOP))
    row.validate()
    assert row.turns[0] == first
    assert row.token_ids.tolist() == [1, 2, 11, STOP, 4, 5, 15, STOP]
    row.commit(1, Seam(), piece(6), reply(16, STOP))
    row.validate()
    assert row.token_ids.tolist() == [1, 2, 11, STOP, 6, 16, STOP]


def test_the_first_turn_can_be_tried_again() -> None:
    """It goes back to an empty row."""
    row = TokenRow()
    row.commit(0, Seam(), piece(1), reply(11, STOP))
    row.commit(0, Seam(), piece(2), reply(12, STOP))
    row.validate()
    assert row.token_ids.tolist() == [2, 12, STOP]


def test_a_stop_token_that_opens_the_next_message_is_dropped_once() -> None:
    """Where a stop token is also the next message's opener, it must not stand there twice.

    The three turns are the registered vector: outputs [10,99], [20,99], [30,99] after prompts
    [1,2,3], +[4,5,6], +[7,8,9], where at most one token may be trimmed and the last is kept.
    """
    row = TokenRow()
    row.commit(0, Seam(), piece(1, 2, 3), reply(10, STOP))
    row.commit(1, Seam(drop=1), piece(4, 5, 6), reply(20, STOP))
    row.commit(2, Seam(drop=1), piece(7, 8, 9), reply(30, STOP))
    row.validate()
    assert row.token_ids.tolist() == [1, 2, 3, 10, 4, 5, 6, 20, 7, 8, 9, 30, STOP]
    assert [turn.end - turn.prompt_end for turn in row.turns] == [1, 1, 2]
    assert [turn.prefix_hash for turn in row.turns] == [
        prefix_hash(row.token_ids[: turn.end].tolist()) for turn in row.turns
    ]


def routed(first: int, count: int) -> np.ndarray:
    """Routes of `count` tokens through two experts in one layer, told apart by their numbers."""
    return np.arange(first, first + count, dtype=np.uint8)[:, None, None] + np.array(
        [[0, 100]], dtype=np.uint8
    )


def with_routes(sampled: SampledReply, first: int, count: int) -> SampledReply:
    return replace(sampled, routes=routed(first, count))


def routes_in(row: TokenRow) -> list[int]:
    assert row.routes is not None
    assert row.routes.shape[1:] == (1, 2)
    return [int(value) for value in row.routes[:, 0, 0]]


def test_routes_go_with_the_tokens_that_stay() -> None:
    """Trimmed, tried again, cut off, copied: each token that is left has the route of its pass."""
    row = TokenRow()
    assert row.routes is None
    row.commit(0, Seam(), piece(1, 2, 3), with_routes(reply(10, STOP), 0, 4))
    assert routes_in(row) == [0, 1, 2, 3]
    # The stop token goes; the token before it is computed once more, before another successor.
    row.commit(1, Seam(drop=1), piece(4, 5), with_routes(reply(20, STOP), 50, 4))
    assert row.length == 8
    assert routes_in(row) == [0, 1, 2, 50, 51, 52, 53]
    row.commit(1, Seam(drop=1), piece(6), with_routes(reply(21, 22), 60, 3))
    row.validate()
    assert routes_in(row) == [0, 1, 2, 60, 61, 62]
    twin = row.copy()
    many = 3 * len(row.token_ids) + 200
    row.commit(2, Seam(), piece(*range(many)), with_routes(reply(23), 0, 0 + many + 1))
    row.validate()
    assert routes_in(row)[:7] == [0, 1, 2, 60, 61, 62, 0], "room is made without losing any"
    assert routes_in(twin) == [0, 1, 2, 60, 61, 62]
    row.cut_for_good(1)
    row.validate()
    assert routes_in(row) == [0, 1, 2, 3], "the stop token stands there again, and what led to it"


def test_routes_of_other_tokens_are_our_own_mistake() -> None:
    row = TokenRow()
    with pytest.raises(AssertionError, match="routes of"):
        row.commit(0, Seam(), piece(1, 2, 3), with_routes(reply(10, STOP), 0, 5))


def test_only_the_newest_turn_can_go() -> None:
    """What stands before it belongs to replies that were already built upon."""
    row = TokenRow()
    for turn in range(3):
        row.commit(turn, Seam(), piece(1), reply(2))
    with pytest.raises(AssertionError, match="discards 2 turns"):
        row.commit(1, Seam(), piece(1), reply(2))


def test_a_long_row_costs_nine_bytes_a_token() -> None:
    """64k tokens must not cost megabytes for each of hundreds of sessions."""
    row = TokenRow()
    text = piece(*range(1000))
    for turn in range(64):
        row.commit(turn, Seam(), text, reply(*range(1, 25)))
    row.validate()
    arrays = (row.token_ids.base, row.logprobs.base, row.provenance.base)
    held = sum(array.nbytes for array in arrays if array is not None)
    assert held <= 2 * 9 * row.length


@dataclass
class Obvious:
    """The same row, slowly: every turn is a list of its own.

    As in a family, what is trimmed off a reply that goes on is told by its last token.
    """

    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def drop(self, base: int) -> int:
        return int(self.turns[base - 1][1][-1] == OBSERVATION) if base else 0

    def commit(self, base: int, prompt: list[int], sampled: list[int]) -> None:
        del self.turns[base:]
        self.turns.append((prompt, sampled))

    def flat(self) -> list[int]:
        row: list[int] = []
        for base, (text, said) in enumerate(self.turns):
            row = [*row[: len(row) - self.drop(base)], *text, *said]
        return row


def test_a_prompt_is_a_view_of_the_row_while_the_row_only_grows() -> None:
    """Copying 64k tokens for each turn would cost more than the new text of the turn."""
    row = TokenRow()
    row.commit(0, Seam(), piece(*range(60)), reply(11, STOP))
    seam, text = Seam(insert=(NEWLINE,)), piece(4, 5)
    prompt = row.prompt(1, seam, text)
    assert np.shares_memory(prompt, row.token_ids)
    assert not prompt.flags.writeable
    row.commit(1, seam, text, reply(12, STOP))
    row.validate()
    assert np.shares_memory(prompt, row.token_ids), "what is said already is not written again"
    again = row.prompt(1, seam, piece(6))
    assert not np.shares_memory(again, row.token_ids), "the newest reply stays until a commit"
    assert row.token_ids.tolist() == [*range(60), 11, STOP, NEWLINE, 4, 5, 12, STOP]


def test_a_text_that_was_laid_is_committed_where_it_stands_or_laid_again() -> None:
    """Its turn is tried again, or stopped; the row grows between prompt and commit.

    As in a run, a text is one piece: what the row skips to write must be there, to the token.
    """
    row, seam = TokenRow(), Seam(insert=(NEWLINE,))
    first, second, third = piece(*range(1, 61)), piece(71, 72), piece(81)
    row.prompt(0, Seam(), first)
    row.commit(0, Seam(), first, reply(*range(1, 200)))
    row.validate()
    stopped = row.prompt(1, seam, second)
    row.prompt(1, seam, third)
    row.validate()
    row.commit(1, seam, third, reply(12, STOP))
    row.validate()
    row.prompt(1, seam, third)
    row.commit(1, seam, third, reply(13, 14, STOP))
    row.validate()
    row.commit(1, seam, second, reply(15, STOP))
    row.validate()
    head = [*range(1, 61), *range(1, 200), NEWLINE]
    assert stopped.tolist() == [*head, 71, 72]
    assert row.token_ids.tolist() == [*head, 71, 72, 15, STOP]


@pytest.mark.parametrize("seed", range(60))
def test_a_prompt_never_changes_whatever_becomes_of_its_turn(seed: int) -> None:
    """It may still be on its way when its turn was stopped, refused, or tried again otherwise."""
    generator = random.Random(seed)
    row, slow = TokenRow(), Obvious()
    given: list[tuple[np.ndarray, list[int]]] = []
    texts = [[generator.randrange(9) for _ in range(generator.randint(1, 30))] for _ in range(4)]
    # A text is the very piece that it was, until the renderer forgets it.
    pieces: dict[tuple[int, ...], Piece] = {}
    for _ in range(40):
        count = len(row.turns)
        base = count - 1 if count and generator.random() < 0.3 else count
        drop = slow.drop(base)
        seam = Seam(drop=drop, insert=(NEWLINE,) if generator.random() < 0.5 else ())
        # The same text often, or its beginning: what stands there already may be what is wanted.
        text = generator.choice(texts)[: generator.choice([None, 1, 5])]
        kept = Obvious(slow.turns[:base]).flat()
        wanted = [*kept[: len(kept) - drop], *seam.insert, *text]
        if generator.random() < 0.1:
            pieces.clear()
        laid = pieces.setdefault(tuple(text), piece(*text))
        if generator.random() < 0.9:
            prompt = row.prompt(base, seam, laid)
            assert prompt.tolist() == wanted
            given.append((prompt, wanted))
        if generator.random() < 0.6:
            sampled = [*generator.choice([[], *texts]), generator.choice([STOP, OBSERVATION])]
            row.commit(base, seam, laid, reply(*sampled))
            slow.commit(base, [*seam.insert, *text], sampled)
        row.validate()
        assert row.token_ids.tolist() == slow.flat()
        assert all(prompt.tolist() == told for prompt, told in given)


tokens = st.lists(st.integers(0, 120), min_size=1, max_size=40)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), tokens, tokens), max_size=12),
    st.integers(0, 12),
)
def test_any_history_of_turns_equals_the_slow_row(
    steps: list[tuple[bool, bool, list[int], list[int]]], kept: int
) -> None:
    """Retries, trims, growth and a cut in any order, against lists; every hash is derived anew."""
    row, slow = TokenRow(), Obvious()
    for retry, trim, prompt, sampled in steps:
        count = len(row.turns)
        base = count - 1 if retry and count else count
        sampled[-1] = OBSERVATION if trim else STOP
        row.commit(base, Seam(drop=slow.drop(base)), piece(*prompt), reply(*sampled))
        slow.commit(base, prompt, sampled)
        row.validate()
        kept_tokens = sum(turn.end - turn.prompt_end for turn in row.turns)
        assert kept_tokens + row.num_trimmed == sum(len(said) for _, said in slow.turns)
    assert row.token_ids.tolist() == slow.flat()
    row.cut_for_good(min(kept, len(row.turns)))
    row.validate()
    del slow.turns[kept:]
    assert row.token_ids.tolist() == slow.flat()
    assert [turn.prefix_hash for turn in row.turns] == [
        prefix_hash(row.token_ids[: turn.end].tolist()) for turn in row.turns
    ]


def test_a_turn_keeps_what_its_engine_said_of_weights_and_cache() -> None:
    """The trainer's door compares it; a version that sampled only what was trimmed is not named."""
    row = TokenRow()
    spans = (VersionSpan(start=0, end=1, version=1), VersionSpan(start=1, end=2, version=2))
    said = replace(
        reply(11, OBSERVATION, versions=((1, 1), (1, 2))),
        incarnation=3,
        cached_tokens=2,
        weights=weights_used(spans),
    )
    row.commit(0, Seam(), piece(1, 2, 3), said)
    (turn,) = row.turns
    assert (turn.engine, turn.incarnation, turn.cached_tokens) == ("engine-0", 3, 2)
    assert turn.weights == weights_used(spans)
    row.commit(1, Seam(drop=1), piece(OBSERVATION, 4), reply(12, STOP))
    trimmed, _ = row.turns
    assert trimmed.weights == weights_used(spans[:1])
    assert (trimmed.incarnation, trimmed.cached_tokens) == (3, 2)
