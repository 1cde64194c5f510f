"""Every page at every size: exactly as large as the screen, and it says what it should."""

from __future__ import annotations

import pytest
from unit.monitor.kit import (
    about,
    actors,
    event,
    finished,
    going_on,
    heard,
    link,
    mailbox,
    step,
    told,
)

from milepost.launch.monitor.model import Model
from milepost.launch.monitor.ui import Page, Place, press
from milepost.launch.monitor.updates import Copied, Ended, Logged, Recorded, Silent
from milepost.launch.monitor.view import num_lines, view

SIZES = [(80, 24), (120, 40), (200, 60), (132, 28), (40, 10), (20, 3), (1, 1), (300, 100)]
OPENED = {
    Page.ACTOR: "buffer",
    Page.QUEUE: "inbox of buffer",
    Page.TRAJECTORY: "g0000040.1",
    Page.EVENT: "2",
}


def full() -> Model:
    model = going_on()
    model.take(Copied(seen=(finished("g0000040.1"),)))
    model.take(Logged(actor="buffer", lines=("first line", "\x1b[31mred\x1b[0m")))
    return model


def place(page: Page, width: int = 80, height: int = 24, opened: str | None = None) -> Place:
    name = OPENED.get(page, "") if opened is None else opened
    return Place(page=page, width=width, height=height, opened=name)


def text(model: Model, page: Page, width: int = 80, height: int = 24, opened: str = "") -> str:
    name = opened or OPENED.get(page, "")
    return "\n".join(one.text for one in view(model, place(page, width, height, name)))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("page", Page)
def test_a_page_is_exactly_as_large_as_the_screen(page: Page, width: int, height: int) -> None:
    for model in (told(), going_on(), full(), told(Ended(summary={"status": "killed"}))):
        lines = view(model, place(page, width, height))
        assert [one.width for one in lines] == [width] * height
        assert "\x1b" not in "".join(one.text for one in lines)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_the_overview_has_everything_that_matters(size: tuple[int, int]) -> None:
    shown = text(going_on(), Page.OVERVIEW, *size)
    for word in (
        "lookup  running",
        "step 3 of 80",
        "rollout is the bottleneck",
        "C1 same tokens",
        "C2 same routes",
        "C3 same log-probs",
        "C4 same version",
        "not measured",
        "success",
        "reward",
        "engine-0",
        "v3",
        "5/8 groups, 1 version old",
        "trained",
        "wasted",
        "40 issued = 24 trained + 3 dropped + 8 sampling + 5 stored  balances",
        "trainer-0",
        "supervisor",
        "credit",
        "loop ms",
        "restarted",
    ):
        assert word in shown, word


def test_a_ledger_that_is_off_is_not_called_balanced() -> None:
    wrong = actors()
    wrong[6]["statistics"]["issued"] += 2
    assert "OFF BY +2" in text(told(heard(actors=wrong)), Page.OVERVIEW)


def test_the_first_lines_say_who_is_waited_for_and_how_it_ended() -> None:
    starting = told(heard(0, run={"phase": "starting", "waiting": "waiting for 1 of 8: engine-0"}))
    assert "waiting for 1 of 8: engine-0" in text(starting, Page.OVERVIEW)
    model = going_on()
    model.take(Silent(reason="the supervisor (pid 4700) has said nothing for 6 s"))
    assert "has said nothing for 6 s" in text(model, Page.OVERVIEW)
    cause = {"actor": "engine-0", "text": "exited with 1"}
    model.take(Ended(summary={"status": "failed", "cause": cause, "steps_done": 3}))
    assert "the run has ended: failed after 3 steps; engine-0: exited" in text(model, Page.ACTORS)


def test_many_actors_are_shown_around_the_cursor() -> None:
    many = [{**actors()[1], "actor": f"engine-{number}"} for number in range(200)]
    model = told(heard(actors=many))
    here = Place(width=80, height=24, chosen={Page.OVERVIEW: "engine-150"})
    lines = view(model, here)
    lit = [one for one in lines if one.lit]
    assert [one.text.split()[0] for one in lit] == ["engine-150"]
    assert "more engines serve" in "\n".join(one.text for one in lines)


def test_a_full_mailbox_and_a_spent_credit_stand_out() -> None:
    from milepost.launch.monitor.lines import Ink

    blocked = mailbox(depth=4000, blocked_senders=3, received=9)
    found = actors()
    found[3]["statistics"]["bus"] = {
        "mailbox": blocked,
        "links": [link("rollout", unacked=256)],
        "loop": {"p99_ms": 900.0},
        "failed_inside": 0,
    }
    (row,) = [
        one for one in view(told(heard(actors=found)), Place()) if one.text.startswith("buffer")
    ]
    inks = {span.text.strip(): span.ink for span in row.spans}
    assert (inks["4000"], inks["0"], inks["900"]) == (Ink.BAD, Ink.BAD, Ink.WARN)


def test_one_actor_is_shown_with_queues_numbers_and_log() -> None:
    shown = text(full(), Page.ACTOR, 100, 60)
    for word in ("buffer  running", "buffer works", "inbox of buffer", "queue_s_old_max"):
        assert word in shown, word
    assert "tokens_by_account.trained" in shown
    assert "first line" in shown
    assert "no actor nobody any more" in text(full(), Page.ACTOR, opened="nobody")


def test_the_log_of_another_actor_is_not_shown() -> None:
    """The log that was read last may be that of the page before."""
    assert "first line" not in text(full(), Page.ACTOR, 100, 60, opened="rollout")


def test_one_queue_is_shown_with_how_to_see_its_messages() -> None:
    shown = text(going_on(), Page.QUEUE)
    assert "0 of 4096 messages" in shown
    assert "milepost tap '* -> buffer' --decode --run runs/lookup" in shown


def test_one_trajectory_is_shown_with_turns_versions_and_certificate() -> None:
    shown = text(full(), Page.TRAJECTORY, 80, 40)
    for word in ("completed", "reward 1", "8 of 20 tokens sampled", "solved 1", "stop"):
        assert word in shown, word
    assert "family qwen3" in shown
    assert "5 6 7" in shown
    assert "milepost trace runs/lookup g0000040.1" in shown
    flying = text(full(), Page.TRAJECTORY, 80, 40, opened="g0000041.0")
    assert "running at agent-0 for 13.0s" in flying


def test_an_event_is_shown_in_full() -> None:
    model = told(Recorded(events=(event("failed", "a long story " * 20, log_tail=["boom"]),)))
    shown = text(model, Page.EVENT, opened="1")
    assert shown.count("long story") > 10
    assert "boom" in shown


def test_a_supervised_run_has_a_loss_and_no_reward() -> None:
    model = told(Recorded(steps=(step(1, **{"train/nll": 1.25}),)), supervised=True)
    shown = text(model, Page.OVERVIEW)
    assert "loss" in shown
    assert "reward" not in shown


def test_a_version_that_was_published_before_this_monitor_came_is_on_the_line() -> None:
    """It attaches late and sees the whole line, not only its own minute of it."""
    model = told(Recorded(steps=tuple(step(number) for number in range(1, 30))), heard(30))
    (shown,) = [
        one.text
        for one in view(model, Place(width=200, height=60))
        if one.text.startswith("engine-0 ") and "v30" in one.text
    ]
    assert {"12", "20", "29"} <= set(shown.split())


def test_an_engine_of_evaluations_has_a_line_of_its_own_and_only_what_it_served() -> None:
    """It is given the versions that are scored; what was published went to the others."""
    names = ("engine-0", "evaluation_engine-0")
    two = [{**actors()[1], "actor": name, "kind": name[:-2]} for name in names]
    model = told(Recorded(steps=tuple(step(number) for number in range(1, 3))), heard(actors=two))
    shown = [one.text for one in view(model, Place(width=200, height=60)) if " v3" in one.text]
    ours, theirs = shown
    assert " 2 " in ours
    assert " 2 " not in theirs


def test_a_long_page_scrolls_to_its_end_and_no_further() -> None:
    model = full()
    here = place(Page.ACTOR, 80, 24)
    lines = num_lines(model, here)
    assert lines > here.body_lines
    end = press(here, "end", model, lines)
    assert end.scroll == lines - end.body_lines
    assert press(end, "down", model, lines).scroll == end.scroll
    assert about().name in view(model, end)[0].text
    assert press(end, "up", model, lines).scroll == end.scroll - 1
