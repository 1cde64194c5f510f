"""One line: the side that holds the run up, the age of its data, the key to turn."""

from __future__ import annotations

import pytest

from milepost.launch.reading import read_flow


def steps(wait: float, queue: float, **more: float) -> list[dict[str, float]]:
    metrics = {
        "perf/wait_time_ratio": wait,
        "rollout/fully_async/queue_size": queue,
        "rollout/staleness/s_old_mean": 1.5,
        "rollout/staleness/s_old_max": 4.0,
    }
    return [{**metrics, **{f"rollout/fully_async/{k}": v for k, v in more.items()}}] * 3


@pytest.mark.parametrize(
    ("wait", "queue", "said"),
    [
        (0.6, 0, "rollout is the bottleneck (the trainer waits 60% of its time): more engines"),
        (0.01, 12, "the trainer is the bottleneck (12 groups wait for it): more trainer ranks"),
        (0.1, 2, "rollout and trainer keep pace (the trainer waits 10% of its time)"),
    ],
)
def test_the_side_that_waits_names_the_other_as_the_bottleneck(
    wait: float, queue: float, said: str
) -> None:
    line = read_flow(steps(wait, queue))
    assert line.startswith(said)
    assert line.endswith("groups are 1.5 versions old when trained, 4 at most")


def test_groups_sampled_for_nothing_are_said_with_the_key_that_ends_it() -> None:
    line = read_flow(steps(0.1, 2, stale_groups_filtered=1.0))
    assert "actors.buffer.staleness_policy to pace or correct" in line


def test_in_turns_nobody_is_to_blame_and_without_a_flow_nothing_is_said() -> None:
    assert "take turns" in read_flow(steps(0.6, 0), sync=True)
    assert read_flow([{"train/nll": 0.3}]) == ""
