"""A row as blocks of tokens: each token in its place, with the facts that colour it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest
from msgspec.structs import replace
from unit.view.kit import Part, R, S, Shelf, T, U, make_row, talk

from milepost.actors.archive.reader import Training
from milepost.launch.view.certificate import contracts, differences, turns
from milepost.launch.view.rows import (
    TOKENS_MAX,
    RowText,
    difference_class,
    page_of,
    trainer_logprobs,
    values_of,
)
from milepost.launch.view.speller import Place
from milepost.messages.bulk import Bulk
from milepost.messages.shared import WeightsUsed
from milepost.messages.trajectory import Provenance, TurnBoundary

NO_TEXT = RowText(why_not="none")


def test_the_blocks_are_the_row_cut_where_its_producer_changes(shelf: Shelf) -> None:
    row = shelf.row("a.0", 4, 1.0)
    page = page_of(row, {}, NO_TEXT, 0, TOKENS_MAX)
    parts = talk("zoe", "owl", 4)
    names = {T: "template", U: "user", R: "tool", S: "sampled"}
    assert [block.who for block in page.blocks] == [names[who] for who, _, _ in parts]
    shown = [token.token_id for block in page.blocks for token in block.tokens]
    assert shown == list(values_of(row.token_ids))
    places = [token.at for block in page.blocks for token in block.tokens]
    assert places == list(range(page.length))
    replies = [block for block in page.blocks if block.who == "sampled"]
    assert [(block.turn, block.versions, block.finish) for block in replies] == [
        (1, (4,), "stop"),
        (2, (5,), "stop"),
        (3, (6,), "stop"),
    ]
    assert page.versions == [4, 5, 6]


def test_two_replies_without_a_word_between_them_are_two_blocks(model: Path) -> None:
    """A continued reply begins where its turn does, not where somebody else speaks."""
    parts: list[Part] = [(U, "Go", 0), (S, "one", 1), (S, "two", 2)]
    page = page_of(make_row(model, "b.0", parts, reward=0.0), {}, NO_TEXT, 0, TOKENS_MAX)
    assert [(block.who, block.turn) for block in page.blocks] == [
        ("user", None),
        ("sampled", 1),
        ("sampled", 2),
    ]


class Counted(tuple[TurnBoundary, ...]):
    """How often all turns of a row are gone through."""

    __slots__ = ()
    num_walks = 0

    def __iter__(self) -> Iterator[TurnBoundary]:
        Counted.num_walks += 1
        return super().__iter__()


def test_a_page_does_not_go_through_all_turns_for_each_of_its_tokens(shelf: Shelf) -> None:
    """A page of a conversation of 15,000 turns took two seconds."""
    row = shelf.row("a.0", 4, 1.0)
    long = replace(row, turns=Counted(row.turns))
    assert page_of(long, {}, NO_TEXT, 0, TOKENS_MAX) == page_of(row, {}, NO_TEXT, 0, TOKENS_MAX)
    assert Counted.num_walks <= 4


@pytest.mark.parametrize(("start", "end"), [(0, 5), (5, 17), (17, 10_000), (86, 87), (0, 0)])
def test_a_page_has_its_tokens_and_no_others(shelf: Shelf, start: int, end: int) -> None:
    row = shelf.row("a.0", 0, 1.0)
    page = page_of(row, {}, NO_TEXT, start, end)
    places = [token.at for block in page.blocks for token in block.tokens]
    assert places == list(range(start, min(end, page.length)))


def test_a_token_says_who_when_how_surely_and_whether_it_is_trained(shelf: Shelf) -> None:
    row = shelf.row("a.0", 0, 1.0)
    first = row.turns[0].prompt_end
    engine = values_of(row.logprobs)[first]
    pieces: list[str | None] = [f"<{at}>" for at in range(row.token_ids.shape[0])]
    pieces[1] = None
    text = RowText(pieces=pieces, special=frozenset({0}), mismatch=Place(1, 3, 2))
    page = page_of(row, {first: engine - 0.1}, text, 0, TOKENS_MAX)
    tokens = [token for block in page.blocks for token in block.tokens]
    assert (tokens[0].text, tokens[0].classes) == ("<0>", "w0 m0 s")
    assert (tokens[1].text, tokens[2].classes) == ("·", "w0 m0 x")
    assert tokens[first].classes == "w3 m1 v0 n3"
    assert (tokens[first].version, tokens[first].logprob) == (0, engine)
    assert tokens[first].trainer == pytest.approx(engine - 0.1)


@pytest.mark.parametrize(
    ("difference", "name"),
    [
        (0.0, "d0"),
        (0.0019, "d0"),
        (-0.002, "n1"),
        (0.02, "p2"),
        (-0.1, "n3"),
        (0.9, "p4"),
        (9, "p5"),
    ],
)
def test_differences_have_five_classes_on_either_side(difference: float, name: str) -> None:
    assert difference_class(difference) == name


def test_log_probs_of_the_trainer_lie_along_the_sampled_tokens(shelf: Shelf) -> None:
    """Where another row trains a token there is none: the array has a NaN."""
    row = shelf.row("a.0", 0, 1.0)
    places = [at for at, who in enumerate(values_of(row.provenance)) if who == S]
    values = array("f", [nan, *(-float(at) for at in range(1, len(places)))])
    found = trainer_logprobs(row, Bulk("float32", (len(places),), values.tobytes()))
    assert found == {place: -float(at) for at, place in enumerate(places) if at}
    assert trainer_logprobs(row, None) == {}
    told = differences(row, found)
    assert told is not None
    assert told.count == len(places) - 1
    assert told.at == places[-1]
    assert told.largest < -1
    assert differences(row, {}) is None


def test_a_contract_that_failed_keeps_its_words() -> None:
    """`passed` is green; anything else is shown as the door said it."""
    assert contracts(None) == []
    verdicts = {
        "C1": "passed",
        "C3": "not checked",
        "C4": "span 2 overlaps span 1",
        "seal": "passed",
    }
    training = Training(step=1, advantage=0.0, staleness=0, logprobs=None, contracts=verdicts)
    assert [(one.name, one.verdict, one.kind) for one in contracts(training)] == [
        ("C1 same tokens", "passed", "passed"),
        ("C3 same log-probs", "not checked", ""),
        ("C4 same version", "span 2 overlaps span 1", "fault"),
        ("seal", "passed", "passed"),
    ]


def test_each_reply_says_who_vouches_for_it(shelf: Shelf) -> None:
    """The weights are named by their digest, and so are caches that older ones have left."""
    row = shelf.row("a.0", 4, 1.0)
    used = (
        WeightsUsed(version=4, digest="ab" * 16, kv_version=4),
        WeightsUsed(version=5, digest="cd" * 16, kv_version=4),
    )
    first = replace(row.turns[0], weights=used, incarnation=2, cached_tokens=7, trained=False)
    told = turns(replace(row, turns=(first, *row.turns[1:])))
    assert [turn.number for turn in told] == [1, 2, 3]
    assert sum(turn.num_tokens for turn in told) == row.num_sampled_tokens
    assert told[0].weights == ["version 4, abababababab", "version 5, cdcdcdcdcdcd, caches of 4"]
    assert (told[0].engine, told[0].num_cached, told[0].is_trained) == ("engine-0.2", 7, False)


def test_recorded_replies_were_sampled_by_nobody_and_differ_from_nothing(model: Path) -> None:
    """Their zeros are no log-probs of an engine."""
    parts: list[Part] = [(U, "Go", 0), (Provenance.RECORDED, "so it is", 0)]
    row = make_row(model, "r.0", parts, reward=0.0)
    places = {at: -1.0 for at, who in enumerate(values_of(row.provenance)) if who == 4}
    assert places
    assert differences(row, places) is None
