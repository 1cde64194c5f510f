"""What the two displays write, without a terminal and without a clock."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from milepost.launch.display.plain import PlainDisplay
from milepost.launch.display.progress import Progress
from milepost.launch.display.screen import Screen, picture
from milepost.launch.display.words import plain_line, seconds
from milepost.messages.supervisor import EventReported, Snapshot


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


METRICS = {
    "train/version": 0.0,
    "rollout/solved": 0.5,
    "rollout/raw_reward": 0.625,
    "rollout/fully_async/queue_size": 3.0,
    "train/staleness/mean": 1.25,
    "train/staleness/max": 3.0,
    "train/loss": -0.01,
    "train/loss_tokens": 1200.0,
}


def a_snapshot(second: int, waiting: str = "", state: str = "running") -> Snapshot:
    statistics = {"version": second, "generated_tokens": 5000 * second}
    engine = {"actor": "engine-0", "kind": "engine", "state": state, "statistics": statistics}
    run = {"phase": "running", "elapsed_s": float(second), "waiting": waiting}
    return Snapshot(run=run, actors=[engine], last_metrics={}, events=[])


def a_run(display: PlainDisplay | Screen, clock: Clock, steps: int = 4) -> None:
    for second in range(1, steps + 1):
        clock.now_s = float(second)
        display.on_snapshot(a_snapshot(second))
        display.on_step(second - 1, METRICS | {"train/version": float(second)})


def shown(progress: Progress, width: int = 120) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(picture(progress))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_plain_line_has_every_number_a_person_follows() -> None:
    out, clock = io.StringIO(), Clock()
    display = PlainDisplay(Progress("lookup", 80, "solved"), out, clock)
    a_run(display, clock)
    assert out.getvalue().splitlines()[-1] == (
        "step 4/80  success 0.50  reward 0.62  tokens/s rollout 5,000, trainer 1,200  queue 3  "
        "staleness 1.2 (max 3)  version 4  1:16 left"
    )


def test_a_plain_display_names_who_is_waited_for_once() -> None:
    out = io.StringIO()
    display = PlainDisplay(Progress("lookup", 80, "solved"), out, Clock())
    for second in range(3):
        display.on_snapshot(a_snapshot(second, state="greeted"))
    display.on_snapshot(a_snapshot(4))
    assert out.getvalue() == "starting, waits for engine-0\n"


def test_a_quick_supervised_run_does_not_flood_a_pipe_but_shows_its_last_step() -> None:
    out, clock = io.StringIO(), Clock()
    display = PlainDisplay(Progress("warmup", 900, "solved", supervised=True), out, clock)
    for step in range(1, 901):
        clock.now_s = step * 0.05
        metrics = {"train/nll": 1 / step, "train/loss_tokens": 10.0, "train/version": step}
        display.on_step(step - 1, metrics | {"rollout/raw_reward": 0.0})
    lines = out.getvalue().splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith("step 1/900  loss 1.000")
    assert lines[-1].startswith("step 900/900  loss 0.001")


def test_events_are_lines_and_routine_ones_are_not_shown() -> None:
    out = io.StringIO()
    display = PlainDisplay(Progress("lookup", 80, "solved"), out, Clock())
    display.on_event(EventReported(source="engine-0", kind="ready", text="engine-0 is ready"))
    display.on_event(EventReported(source="engine-0", kind="restarted", text="was killed"))
    assert out.getvalue() == "engine-0 restarted: was killed\n"


def test_the_picture_has_head_results_flow_and_events() -> None:
    clock, progress = Clock(), Progress("lookup", 80, "solved")
    a_run(PlainDisplay(progress, io.StringIO(), clock), clock)
    progress.take_event(EventReported(source="supervisor", kind="begun", text="all are ready"))
    head, results, speed, freshness, event = shown(progress)
    for word in ("lookup", "running", "step 4/80", "4 s", "about 1:16 left"):
        assert word in head
    assert results.split()[:4] == ["success", "0.50", "reward", "0.62"]
    assert speed.startswith("tokens/s rollout ")
    assert freshness.split("   ") == ["queue 3", "staleness 1.2 (max 3)", "version 4"]
    assert event == "· supervisor begun: all are ready"


def test_the_picture_says_who_is_missing_while_the_run_starts() -> None:
    progress = Progress("lookup", 80, "solved")
    progress.take_snapshot(a_snapshot(2, waiting="waiting for 1 of 8: engine-0 (READY, 2 s)"))
    assert shown(progress)[1] == "waiting for 1 of 8: engine-0 (READY, 2 s)"


def test_eighty_columns_show_everything_to_the_last_number() -> None:
    clock, progress = Clock(), Progress("lookup", 80, "solved")
    a_run(PlainDisplay(progress, io.StringIO(), clock), clock)
    assert shown(progress, width=80)[1:] == shown(progress, width=200)[1:]
    assert "version 4" in shown(progress, width=80)[3]


def test_a_narrow_terminal_gets_no_broken_lines() -> None:
    clock, progress = Clock(), Progress("lookup", 80, "solved")
    a_run(PlainDisplay(progress, io.StringIO(), clock), clock)
    progress.take_event(EventReported(source="supervisor", kind="note", text="long " * 50))
    assert all(len(line) <= 40 for line in shown(progress, width=40))
    assert len(shown(progress, width=40)) < 14


def test_the_screen_draws_twice_a_second_at_most_and_once_at_the_end() -> None:
    """A supervised run records a hundred steps a second: showing each would cost a core."""
    out, clock = io.StringIO(), Clock()
    screen = Screen(
        Progress("lookup", 900, "solved"), Console(file=out, force_terminal=True, width=100), clock
    )
    screen.open()
    begun = out.tell()
    for step in range(1, 101):
        clock.now_s = step * 0.01
        screen.on_step(step - 1, METRICS | {"train/version": float(step)})
    frames = out.getvalue()[begun:].count("lookup")
    assert frames == 2
    screen.close()
    assert "step 100/900" in out.getvalue(), "the last frame shows the last step"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05")],
)
def test_seconds_are_written_as_people_say_them(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_line_before_the_first_batch_claims_nothing() -> None:
    assert plain_line(Progress("lookup", 80, "solved")) == "step 0/80"
