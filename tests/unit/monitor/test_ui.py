"""Where a key leads: pure, so every way through the pages can be tried without a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.monitor.kit import finished, going_on, told

from milepost.launch.monitor.feed import spots_for
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.ui import (
    GOES,
    OPENS,
    Page,
    Place,
    cursor_of,
    names_on,
    press,
    resized,
    window,
)
from milepost.launch.monitor.updates import Copied, Wanted
from milepost.launch.monitor.view import num_lines, view

KEYS = (*GOES, "up", "down", "j", "k", "enter", "escape", "tab", "shift+tab", "home", "end")
MORE = ("pageup", "pagedown", "space", "backspace", "left", "right", "f5", "x")


def after(model: Model, *keys: str, place: Place | None = None) -> Place:
    here = place or Place()
    for key in keys:
        here = press(here, key, model, num_lines(model, here))
    return here


@pytest.mark.parametrize(("key", "page"), GOES.items())
def test_each_page_has_a_key(key: str, page: Page) -> None:
    assert after(going_on(), key).page is page


@pytest.mark.parametrize(
    ("keys", "page", "opened"),
    [
        (("enter",), Page.ACTOR, "trainer-0"),
        (("down", "down", "enter"), Page.ACTOR, "publisher"),
        (("a", "end", "enter"), Page.ACTOR, "supervisor"),
        (("u", "enter"), Page.QUEUE, "inbox of trainer-0"),
        (("t", "enter"), Page.TRAJECTORY, "g0000041.0"),
        (("e", "enter"), Page.EVENT, "2"),
    ],
)
def test_enter_opens_what_the_cursor_is_on(keys: tuple[str, ...], page: Page, opened: str) -> None:
    here = after(going_on(), *keys)
    assert (here.page, here.opened) == (page, opened)


def test_escape_goes_back_to_the_list_and_then_to_the_overview() -> None:
    here = after(going_on(), "u", "down", "enter", "escape")
    assert (here.page, here.opened) == (Page.QUEUES, "")
    assert cursor_of(here, names_on(Page.QUEUES, going_on())) == 1
    assert after(going_on(), "escape", place=here).page is Page.OVERVIEW


def test_tab_goes_round_all_lists() -> None:
    pages = [after(going_on(), *["tab"] * number).page for number in range(6)]
    assert pages[0] is pages[5] is Page.OVERVIEW
    assert len(set(pages)) == 5
    assert after(going_on(), "shift+tab").page is Page.EVENTS


def test_the_cursor_stays_on_what_it_was_on() -> None:
    """New trajectories end above it all the time; it must not jump to another one."""
    model = told(Copied(seen=(finished("g1.0"), finished("g2.0"))))
    here = after(model, "t", "down")
    assert here.chosen[Page.TRAJECTORIES] == "g1.0"
    model.take(Copied(seen=(finished("g3.0"), finished("g4.0"))))
    assert cursor_of(here, names_on(Page.TRAJECTORIES, model)) == 3


def test_keys_on_an_empty_list_do_nothing() -> None:
    for key in ("enter", "down", "end", "pagedown"):
        assert after(told(), "t", key).page is Page.TRAJECTORIES


@given(st.lists(st.sampled_from((*KEYS, *MORE)), max_size=30), st.integers(0, 50))
def test_no_way_of_keys_leads_out_of_the_picture(keys: list[str], size: int) -> None:
    model = going_on()
    here = after(model, *keys, place=resized(Place(), 2 * size, size))
    assert len(view(model, here)) == size
    assert here.page in {*GOES.values(), *OPENS.values()}


@given(st.integers(0, 100), st.integers(0, 99), st.integers(0, 30))
def test_the_cursor_s_line_is_always_shown(count: int, cursor: int, rows: int) -> None:
    shown = window(count, cursor, rows)
    assert len(shown) == min(count, rows)
    if rows and cursor < count:
        assert cursor in shown


def test_only_the_page_in_front_asks_the_run_for_more() -> None:
    """Taps and logs cost little; while nobody looks at them they cost nothing."""
    model = going_on()
    assert after(model).wanted == after(model, "u").wanted == after(model, "e").wanted == Wanted()
    assert after(model, "enter").wanted == Wanted(log="trainer-0")
    assert after(model, "a", "end", "enter").wanted == Wanted()
    assert after(model, "t").wanted == Wanted(finished=True)
    assert after(model, "t", "enter", "escape", "o").wanted == Wanted()


def test_a_list_taps_what_is_delivered_and_one_trajectory_what_concerns_it() -> None:
    names = ("rollout", "session-0", "session-1", "agent-0")
    listed = spots_for(Wanted(finished=True), names)
    assert [(spot.actor, spot.peers, spot.received) for spot in listed] == [
        ("session-0", "buffer", False),
        ("session-1", "buffer", False),
    ]
    opened = spots_for(Wanted(finished=True, trajectory="g1.0"), names)
    assert [(spot.actor, spot.peers) for spot in opened] == [
        ("session-0", "*"),
        ("session-1", "*"),
        ("rollout", "agent-*"),
    ]
