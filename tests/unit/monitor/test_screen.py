"""The screen by Textual's own pilot: every size, every key, and how little a frame repaints."""

from __future__ import annotations

import pytest
from unit.monitor.kit import finished, going_on, heard, step
from unit.monitor.test_ui import KEYS, MORE

from milepost.launch.monitor.lines import Ink, Span, line
from milepost.launch.monitor.model import Model
from milepost.launch.monitor.screen import Canvas, MonitorApp, changed, strip_of
from milepost.launch.monitor.ui import Page
from milepost.launch.monitor.updates import Copied, Ended, Recorded, Silent
from milepost.launch.monitor.view import view

SIZES = [(80, 24), (120, 40), (200, 60)]
NEVER_S = 3600.0
"""A test asks for its frames itself."""


def app_of(model: Model) -> MonitorApp:
    return MonitorApp(model, NEVER_S)


def painted(app: MonitorApp) -> list[str]:
    """What the screen shows, as Textual would write it."""
    canvas = app.query_one(Canvas)
    return [canvas.render_line(row).text for row in range(canvas.size.height)]


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_each_size_shows_the_picture_of_the_view(size: tuple[int, int]) -> None:
    app = app_of(going_on())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert (app.place.width, app.place.height) == size
        assert painted(app) == [one.text for one in view(app.model, app.place)]
        assert "C3 same log-probs" in app.export_screenshot().replace("&#160;", " ")


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_every_key_leads_to_a_whole_picture(size: tuple[int, int]) -> None:
    model = going_on()
    model.take(Copied(seen=(finished("g1.0"),)))
    app = app_of(model)
    async with app.run_test(size=size) as pilot:
        for key in (*KEYS, *MORE):
            await pilot.press(key)
            assert painted(app) == [one.text for one in view(model, app.place)], key


async def test_keys_open_an_actor_a_queue_and_a_trajectory() -> None:
    model = going_on()
    app = app_of(model)
    async with app.run_test(size=(80, 24)) as pilot:
        for keys, page, opened in (
            (("down", "enter"), Page.ACTOR, "engine-0"),
            (("u", "down", "enter"), Page.QUEUE, "inbox of engine-0"),
            (("t", "enter"), Page.TRAJECTORY, "g0000041.0"),
            (("question_mark",), Page.HELP, ""),
        ):
            await pilot.press(*keys)
            assert (app.place.page, app.place.opened) == (page, opened)
            await pilot.press("escape", "escape")
    assert model.trajectories.followed == ""


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving_ends_the_screen_and_nothing_else(key: str) -> None:
    app = app_of(going_on())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
    assert app.return_code == 0


async def test_another_size_is_painted_whole() -> None:
    app = app_of(going_on())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.resize_terminal(132, 43)
        await pilot.pause()
        assert [len(text) for text in painted(app)] == [132] * 43


async def test_the_end_and_a_silence_are_shown_and_the_screen_stays() -> None:
    model = going_on()
    app = app_of(model)
    async with app.run_test(size=(80, 24)):
        app.take(Silent(reason="the supervisor (pid 1) has said nothing for 6 s"))
        app.draw()
        assert "said nothing for 6 s" in painted(app)[1]
        app.take(Ended(summary={"status": "done", "steps_done": 80}))
        app.draw()
        assert painted(app)[1].startswith("the run has ended: done after 80 steps")
        assert app.is_running


async def test_a_frame_repaints_only_what_changed() -> None:
    """Over a slow link a second of a quiet run costs a few cells, and the same picture none."""
    model = going_on()
    app = app_of(model)
    async with app.run_test(size=(120, 40)):
        app.draw()
        canvas = app.query_one(Canvas)
        before = canvas.num_cells_painted
        app.draw()
        assert canvas.num_cells_painted == before
        app.take(heard(3, at_s=4.0))
        app.draw()
        quiet = canvas.num_cells_painted - before
        assert quiet < 0.05 * 120 * 40
        app.take(Recorded(steps=(step(4),)))
        app.take(heard(4))
        app.draw()
        assert canvas.num_cells_painted - before - quiet < 0.6 * 120 * 40


async def test_updates_between_frames_cost_no_frame() -> None:
    """A burst of a thousand updates is one picture, when its time has come."""
    app = app_of(going_on())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        before = app.query_one(Canvas).num_cells_painted
        for number in range(4, 40):
            app.take(heard(number))
        await pilot.pause()
        assert app.query_one(Canvas).num_cells_painted == before
        app.draw_if_stale()
        assert app.query_one(Canvas).num_cells_painted > before


@pytest.mark.parametrize(
    ("before", "after", "stretch"),
    [
        ("step 12 of 80", "step 12 of 80", None),
        ("step 12 of 80", "step 13 of 80", (6, 1)),
        ("step 19 of 80", "step 20 of 80", (5, 2)),
        ("a中b", "a中c", (0, 4)),
    ],
)
def test_the_stretch_that_differs_is_found(
    before: str, after: str, stretch: tuple[int, int] | None
) -> None:
    assert changed(line(before), line(after)) == stretch


def test_another_colour_is_a_change_too() -> None:
    found = changed(line("ok ", Span("●", Ink.GOOD)), line("ok ", Span("●", Ink.BAD)))
    assert found == (3, 1)
    assert changed(line("a", lit=True), line("a")) == (0, 1)


@pytest.mark.parametrize("ink", Ink)
def test_every_ink_has_a_colour(ink: Ink) -> None:
    for lit in (True, False):
        (segment,) = strip_of(line(Span("x", ink), lit=lit))
        assert segment.style is not None
        assert segment.style.color is not None
        assert segment.style.bgcolor is not None
