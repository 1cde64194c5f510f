"""Lines, bars, curves and the time line: exact widths, or a screen falls apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.launch.monitor.curves import POINTS_MAX, Curve
from milepost.launch.monitor.drawings import bar, curve, resampled, shares, time_line
from milepost.launch.monitor.lines import (
    Column,
    Ink,
    Line,
    Span,
    beside,
    block,
    cell,
    clean,
    fit,
    line,
    rule,
    wrap,
)

TEXTS = st.text("a \u4e2d\u0301\x1b\x9b\u200d\U0001f642\n\xe9", max_size=60)
VALUES = st.lists(st.floats(-1e6, 1e6), max_size=200)


@given(st.lists(TEXTS, max_size=4), st.integers(0, 40))
def test_a_fitted_line_is_exactly_as_wide_as_asked_for(texts: list[str], width: int) -> None:
    """Wide characters, none, or too many: the lines below must stay where they are."""
    found = fit(line(*(clean(text) for text in texts)), width)
    assert found.width == width


@given(TEXTS)
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    """A log line or an error may hold escape sequences; shown as they are, they take it over."""
    assert not [letter for letter in clean(text) if ord(letter) < 32 or 127 <= ord(letter) < 160]


def test_a_line_that_is_cut_says_so() -> None:
    assert fit(line("engine-0"), 6).text == "engin…"
    assert fit(line("engine-0"), 8).text == "engine-0"
    assert cell("supervisor", Column("actor", 6)) == "super…"
    assert cell("7", Column("n", 3, right=True)) == "  7"


@given(st.text("ab \u4e2d", max_size=80), st.integers(2, 20))
def test_wrapped_text_fits_and_loses_no_letter(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(one.width <= width for one in lines)
    joined = "".join(one.text for one in lines)
    assert joined.replace(" ", "") == text.replace(" ", "")


def test_blocks_beside_each_other_end_in_empty_lines() -> None:
    rows = beside([([line("a"), line("b")], 3), ([line("c")], 2)], gap=1)
    assert [row.text for row in rows] == ["a   c ", "b     "]
    assert block([line("a")], 2, 2) == [line("a", " "), line("  ")]


def test_a_rule_is_as_wide_as_the_screen() -> None:
    assert rule("events", 20).text == "── events ──────────"
    assert rule("events", 24, "e").text == "── events ───────── e ──"


@given(st.floats(-1, 2), st.integers(0, 60))
def test_a_bar_is_as_wide_as_asked_for_and_never_fuller_than_full(share: float, width: int) -> None:
    filled, empty = bar(share, width)
    assert len(filled.text) + len(empty.text) == width
    assert abs(len(filled.text) - min(1.0, max(0.0, share)) * width) <= 1


@given(VALUES, st.integers(0, 50), st.integers(1, 6))
def test_a_curve_fills_its_frame(values: list[float], width: int, height: int) -> None:
    rows = curve(values, width, height, Ink.FIRST)
    assert [row.width for row in rows] == [width] * height


def test_a_curve_rises_with_its_values() -> None:
    rows = curve([0.0, 0.25, 0.5, 1.0], 4, 2, Ink.FIRST, high=1.0)
    assert [row.text for row in rows] == ["   █", "▁▄██"]


def test_what_lies_under_the_edge_is_of_another_colour() -> None:
    top, bottom = curve([1.0], 1, 2, Ink.SECOND)
    assert top.spans[0].ink is Ink.SECOND
    assert bottom.spans[0].ink is Ink.SECOND_FILL


def test_few_values_are_stretched_and_many_are_averaged() -> None:
    assert resampled([1.0, 2.0], 4) == [1.0, 1.0, 2.0, 2.0]
    assert resampled([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert resampled([], 4) == []


@given(st.lists(st.floats(0, 1e9), max_size=6), st.integers(0, 40))
def test_shares_fill_their_width(values: list[float], width: int) -> None:
    spans = shares([(value, Ink.FIRST) for value in values], width)
    assert sum(len(span.text) for span in spans) == width


def test_a_small_share_is_still_seen() -> None:
    """One token in ten thousand was wasted: it must not vanish."""
    spans = shares([(9999.0, Ink.FIRST), (1.0, Ink.BAD)], 10)
    assert spans == (Span("━" * 9, Ink.FIRST), Span("━", Ink.BAD))


CHANGES = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 999)), max_size=12)


@given(CHANGES, st.integers(0, 60))
def test_a_time_line_is_as_wide_as_asked_for(changes: list[tuple[float, int]], width: int) -> None:
    found = time_line(sorted(changes), 0.0, 100.0, width)
    assert sum(len(span.text) for span in found) == width


def test_a_time_line_names_the_versions_that_have_room() -> None:
    spans = time_line([(10.0, 1), (20.0, 2), (21.0, 3)], 0.0, 40.0, 40)
    assert "".join(span.text for span in spans) == "··········    1               3         "
    assert [span.ink for span in spans] == [Ink.TRACK, Ink.BAND, Ink.BAND_TOO, Ink.BAND]


def test_neighbouring_versions_differ_in_colour() -> None:
    inks = [span.ink for span in time_line([(0.0, 4), (5.0, 5)], 0.0, 10.0, 10)]
    assert inks == [Ink.BAND_TOO, Ink.BAND]


@pytest.mark.parametrize("count", [1, 10, POINTS_MAX - 1, 3 * POINTS_MAX, 5 * POINTS_MAX + 7])
def test_a_curve_of_any_length_keeps_its_mean_and_its_bound(count: int) -> None:
    """A run of weeks has as many points as one of an hour, and the same shape."""
    found = Curve()
    for number in range(count):
        found.add(number, float(number))
        found.add(number, -1.0)  # told twice
    assert len(found.values) <= POINTS_MAX
    assert found.last == count - 1
    whole = sum(value * found.stride for value in found.points)
    rest = count - len(found.points) * found.stride
    assert whole == pytest.approx(sum(range(count - rest)))


def test_an_empty_line_has_no_width() -> None:
    assert Line().width == 0
    assert fit(Line(), 3).text == "   "
