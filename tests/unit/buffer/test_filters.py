"""Filters: built in, of the user's own, and wrong ones named before the run starts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from unit.buffer.kit import Play, settings

from milepost.actors.buffer.filters import FilterError, first_reason, load_filters


def test_a_group_without_spread_teaches_nothing() -> None:
    filters = load_filters(("zero_spread",))
    assert first_reason(filters, (1.0, 1.0, 1.0)) == "zero_spread"
    assert first_reason(filters, (1.0, 0.0)) == ""


def test_the_first_filter_that_drops_gives_the_reason() -> None:
    def too_easy(rewards: Sequence[float]) -> str:
        return "too_easy" if min(rewards) > 0.5 else ""

    filters = (too_easy, *load_filters(("zero_spread",)))
    assert first_reason(filters, (1.0, 1.0)) == "too_easy"
    assert first_reason(filters, (0.0, 0.0)) == "zero_spread"


def test_a_filter_that_answers_anything_but_text_is_refused() -> None:
    """True and False would mean opposite things to two readers."""

    def keep(rewards: Sequence[float]) -> str:
        return bool(rewards)  # type: ignore[return-value]

    with pytest.raises(FilterError, match=r"filter keep answered True for rewards \[0.0\]"):
        first_reason((keep,), (0.0,))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zero_spraed", "unknown filter 'zero_spraed', built in are zero_spread"),
        ("nowhere_at_all:keep", "No module named"),
        ("json:keep", "module json has no function keep"),
    ],
)
def test_a_filter_that_is_not_there_is_named(name: str, said: str) -> None:
    with pytest.raises(FilterError, match=said):
        load_filters((name,))


def test_filters_that_keep_nothing_end_the_run_by_name() -> None:
    """What they drop is sampled again: a solved task under `zero_spread` would go on for ever."""
    given = settings(filters=load_filters(("zero_spread",)), filtered_in_a_row_max=3)
    play = Play(given)
    for name in ("g0", "g1", "g2", "g3", "g4"):
        # One that is kept is proof that the filters can be passed.
        play.put(name, rewards=(0.0, 1.0) if name == "g2" else (1.0, 1.0))
    assert not play.failed
    play.put("g5", rewards=(1.0, 1.0))
    assert play.failed.startswith(
        "actors.buffer.filters dropped 3 groups in a row and kept none (3 by zero_spread), "
        "guard.groups_filtered_in_a_row_max is 3"
    )


def test_without_the_bound_filters_may_drop_for_ever() -> None:
    play = Play(settings(filters=load_filters(("zero_spread",))))
    for at in range(50):
        play.put(f"g{at}", rewards=(1.0, 1.0))
    assert not play.failed
