"""The merge behind every display: it must not lie when snapshots are late, doubled or missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.launch.display.progress import BARS, EVENTS_MAX, Progress, sparkline
from milepost.launch.display.words import plain_line
from milepost.messages.supervisor import EventReported, Snapshot


def snapshot(elapsed_s: float, *engines: tuple[int, int], **run: Any) -> Snapshot:
    """Engines are (version, sampled tokens)."""
    actors = [
        {
            "actor": f"engine-{index}",
            "kind": "engine",
            "statistics": {"version": version, "generated_tokens": tokens},
        }
        for index, (version, tokens) in enumerate(engines)
    ]
    facts = {"phase": "running", "elapsed_s": elapsed_s, "step": 0, "waiting": "", **run}
    return Snapshot(run=facts, actors=actors, last_metrics={}, events=[])


def step_metrics(done: int, success: float, tokens: float = 1000.0) -> dict[str, float]:
    return {
        "train/version": float(done),
        "rollout/solved": success,
        "rollout/raw_reward": success + 0.05,
        "rollout/fully_async/queue_size": 3.0,
        "train/staleness/mean": 1.25,
        "train/staleness/max": 3.0,
        "train/loss": -0.01,
        "train/loss_tokens": tokens,
    }


def a_progress() -> Progress:
    return Progress("lookup", 80, "solved")


def test_the_time_in_which_a_run_stood_still_is_in_no_speed() -> None:
    """Resumed after three days, it said that a step takes hours, and that months were left."""
    progress = a_progress()
    for done in range(1, 6):
        progress.take_step(step_metrics(done, 0.5), now_s=10.0 * done)
    progress.begin_life()
    assert progress.step == 5
    for done in (6, 7):
        progress.take_step(step_metrics(done, 0.5), now_s=260_000.0 + 10.0 * done)
    assert (progress.step_s, progress.left_s, progress.trained_per_s) == (10.0, 730.0, 100.0)


def test_nothing_is_claimed_before_anything_was_told() -> None:
    progress = a_progress()
    for name in ("success", "reward", "loss", "queue", "staleness", "versions", "step_s",
                 "left_s", "trained_per_s", "sampled_per_s"):  # fmt: skip
        assert getattr(progress, name) is None, name
    assert progress.sparkline(10) == ""


def test_a_step_shows_the_numbers_of_its_batch() -> None:
    progress = a_progress()
    progress.take_step(step_metrics(1, 0.25), now_s=10.0)
    assert (progress.step, progress.success, progress.reward) == (1, 0.25, 0.3)
    assert (progress.queue, progress.staleness) == (3, (1.25, 3.0))


def test_speed_and_time_left_come_from_the_last_steps() -> None:
    """A slow start (first evaluation, cold caches) must not spoil the estimate for ever."""
    progress = a_progress()
    progress.take_step(step_metrics(1, 0.1), now_s=0.0)
    progress.take_step(step_metrics(2, 0.1), now_s=1000.0)
    for step in range(3, 43):
        progress.take_step(step_metrics(step, 0.1, tokens=500.0), now_s=1000.0 + 0.5 * (step - 2))
    assert progress.step_s == pytest.approx(0.5)
    assert progress.left_s == pytest.approx(0.5 * 38)
    assert progress.trained_per_s == pytest.approx(1000.0)


def test_what_was_sampled_for_nothing_is_told_at_every_step_with_the_account_it_is_in() -> None:
    """A line a step: a filter that eats half of the tokens is seen while it does."""
    progress = a_progress()
    metrics = step_metrics(1, 0.5, tokens=300.0)
    metrics |= {f"rollout/waste/{name}_tokens": 90.0 for name in ("filtered_zero_spread",)}
    metrics |= {"rollout/waste/stopped_tokens": 10.0, "rollout/waste/evaluated_tokens": 1e6}
    progress.take_step(metrics, now_s=0.0)
    assert "wasted 25% (filtered_zero_spread)" in plain_line(progress)
    progress.take_step(step_metrics(2, 0.5), now_s=1.0)
    assert "wasted" not in plain_line(progress)


def test_metrics_of_another_source_are_merged_and_are_no_step_of_their_own() -> None:
    progress = a_progress()
    progress.take_step(step_metrics(4, 0.5), now_s=1.0)
    progress.take_step({"perf/rollout_time": 0.2}, now_s=1.5)
    assert progress.metrics["perf/rollout_time"] == 0.2
    assert len(progress.curve) == 1
    assert progress.step_s is None


def test_an_older_snapshot_and_an_older_step_change_nothing_that_counts() -> None:
    progress = a_progress()
    progress.take_snapshot(snapshot(5.0, (7, 900), phase="running"))
    progress.take_snapshot(snapshot(4.0, (6, 800), phase="starting"))
    assert (progress.phase, progress.elapsed_s) == ("running", 5.0)
    assert progress.versions == (7, 7)
    progress.take_step(step_metrics(7, 0.8), now_s=1.0)
    progress.take_step(step_metrics(6, 0.9), now_s=2.0)
    assert progress.step == 7
    assert list(progress.curve) == [0.8]


def test_taking_the_same_snapshot_twice_is_taking_it_once() -> None:
    once, twice = a_progress(), a_progress()
    for second in range(4):
        now = snapshot(float(second), (second, 100 * second))
        once.take_snapshot(now)
        twice.take_snapshot(now)
        twice.take_snapshot(now)
    assert once.sampled_per_s == twice.sampled_per_s == pytest.approx(100.0)
    assert once.versions == twice.versions


def test_tokens_of_all_engines_count_and_versions_show_their_spread() -> None:
    progress = a_progress()
    progress.take_snapshot(snapshot(1.0, (3, 0), (4, 50)))
    progress.take_snapshot(snapshot(3.0, (4, 400), (5, 250)))
    assert progress.versions == (4, 5)
    assert progress.sampled_per_s == pytest.approx(300.0)


def test_a_restarted_engine_does_not_make_the_speed_negative() -> None:
    progress = a_progress()
    for second, tokens in enumerate((1000, 2000, 30, 130)):
        progress.take_snapshot(snapshot(float(second), (1, tokens)))
    assert progress.sampled_per_s == pytest.approx(100.0)


def test_only_the_last_events_stay_and_routine_ones_never_show() -> None:
    progress = a_progress()
    shown = [
        progress.take_event(EventReported(source="x", kind=kind, text=str(number)))
        for number, kind in enumerate(["ready", "begun", "a", "work_finished", "b", "c", "d"])
    ]
    assert shown == [False, True, True, False, True, True, True]
    assert [line.kind for line in progress.lines] == ["begun", "a", "b", "c", "d"][-EVENTS_MAX:]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"sampled": {"num_episodes": 9, "success": 0.105, "reward": 0.2}},
            "version 8: held-out success 0.105 sampled",
        ),
        (
            {
                "sampled": {"num_episodes": 9, "success": 0.0, "reward": 0.2},
                "greedy": {"num_episodes": 9, "success": 0.8, "reward": 0.9},
            },
            "version 8: held-out success 0.000 sampled, 0.800 greedy",
        ),
        (
            {"greedy": {"num_episodes": 9, "reward": 0.25}},
            "version 8: held-out reward 0.250 greedy",
        ),
        (
            {
                "sampled": {"num_episodes": 9, "success": 0.9, "reward": 0.9},
                "greedy": {"num_episodes": 9, "reward": 0.25},
            },
            "version 8: held-out success 0.900 sampled, not reported greedy",
        ),
        ({"external": {"exam": 0.75}}, "version 8: exam 0.75"),
    ],
)
def test_an_evaluation_is_told_in_a_few_words(values: dict[str, Any], text: str) -> None:
    """The whole sentence of the event is longer than a line of most terminals."""
    progress = a_progress()
    values |= {"version": 8, "seconds": 1.0}
    progress.take_event(
        EventReported(source="evaluator", kind="evaluation", text="", values=values)
    )
    assert progress.lines[-1].text == text


def test_a_supervised_run_shows_its_loss_and_no_reward() -> None:
    """Its rows carry a reward of zero, which means nothing."""
    progress = Progress("lookup_warmup", 900, "solved", supervised=True)
    metrics = {"train/nll": 0.5, "train/version": 10.0, "rollout/raw_reward": 0.0}
    progress.take_step(metrics, 1.0)
    assert (progress.step, progress.loss, progress.reward) == (10, 0.5, None)
    assert list(progress.curve) == [0.5]


def test_bars_rise_with_the_values_on_a_scale_from_zero_to_one() -> None:
    assert sparkline([0.0, 0.5, 1.0], 3) == "▁▅█"
    assert sparkline([1.0] * 50, 5) == "█████"
    assert sparkline([3.0, 6.0], 2) == "▅█", "larger values stretch the scale"


@given(
    st.lists(st.floats(-10, 10), max_size=300),
    st.integers(0, 40),
)
def test_bars_fit_any_values_into_any_width(values: list[float], width: int) -> None:
    bars = sparkline(values, width)
    assert len(bars) == min(width, len(values))
    assert set(bars) <= set(BARS)
