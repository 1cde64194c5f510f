"""Learning rates in closed form."""

from __future__ import annotations

import math

import pytest

from milepost.actors.trainer.schedule import learning_rate
from milepost.configs.actors import ScheduleConfig


def rates(schedule: ScheduleConfig, steps: int, lr: float = 1.0) -> list[float]:
    return [learning_rate(schedule, lr, step, steps) for step in range(steps)]


def test_constant_after_a_linear_warm_up_whose_first_step_moves() -> None:
    schedule = ScheduleConfig(kind="constant", warmup_steps=4)
    assert rates(schedule, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(ScheduleConfig(kind="constant"), 3) == [1.0, 1.0, 1.0]


def test_linear_goes_from_the_highest_to_the_lowest_rate() -> None:
    schedule = ScheduleConfig(kind="linear", warmup_steps=1, lr_min=0.2)
    assert rates(schedule, 6) == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_in_the_middle() -> None:
    schedule = ScheduleConfig(kind="cosine", lr_min=0.1)
    found = rates(schedule, 5)
    assert found == pytest.approx(
        [0.1 + 0.9 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(5)]
    )
    assert found[0] == pytest.approx(1.0)
    assert found[2] == pytest.approx(0.55)
    assert found[-1] == pytest.approx(0.1)


def test_warm_up_stable_decay_falls_over_its_last_share() -> None:
    schedule = ScheduleConfig(
        kind="warmup_stable_decay", warmup_steps=2, decay_fraction=0.4, lr_min=0.0
    )
    found = rates(schedule, 10)
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "warmup_stable_decay"])
def test_a_step_past_the_end_has_the_last_rate(kind: str) -> None:
    """A run resumed with fewer steps than it had must not get a negative rate."""
    schedule = ScheduleConfig(kind=kind, warmup_steps=2, decay_fraction=0.5)  # type: ignore[arg-type]
    assert learning_rate(schedule, 1.0, 50, 10) == learning_rate(schedule, 1.0, 9, 10)
    assert min(rates(schedule, 10)) >= 0


def test_one_step_and_only_warm_up() -> None:
    assert rates(ScheduleConfig(kind="cosine", warmup_steps=5), 3) == pytest.approx([0.2, 0.4, 0.6])
    assert rates(ScheduleConfig(kind="linear"), 1) == [1.0]
