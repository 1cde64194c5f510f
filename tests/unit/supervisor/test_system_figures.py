"""Rates from counters that actors report: none is made up, none is negative."""

from __future__ import annotations

import pytest

from milepost.supervisor.recording.rates import SystemFigures


def beat(generated: int, prefilled: int, cached: int) -> dict[str, object]:
    return {
        "rss_mib": 512.0,
        "generated_tokens": generated,
        "prefilled_tokens": prefilled,
        "prefix_tokens": cached,
    }


def test_rates_are_those_between_the_last_two_heartbeats_of_each_engine() -> None:
    figures = SystemFigures()
    figures.heard("rollout", {"rss_mib": 1024.0}, 1.0)
    figures.heard("engine-0", beat(1000, 500, 500), 1.0)
    assert figures.metrics() == {"perf/cpu_memory_actors_gb": 1.5}, "one beat is no rate"
    figures.heard("engine-0", beat(1200, 510, 590), 2.0)
    figures.heard("engine-1", beat(0, 0, 0), 2.0)
    figures.heard("engine-1", beat(800, 90, 10), 4.0)
    assert figures.metrics() == {
        "perf/cpu_memory_actors_gb": 2.0,
        "perf/tokens_per_gpu_per_sec": pytest.approx(300.0),
        "rollout/prefix_cache_hit_rate": pytest.approx(0.5),
    }


def test_a_restarted_engine_begins_to_count_again() -> None:
    figures = SystemFigures()
    figures.heard("engine-0", beat(1000, 500, 500), 1.0)
    figures.heard("engine-0", beat(10, 5, 5), 2.0)
    assert "perf/tokens_per_gpu_per_sec" not in figures.metrics()
    figures.heard("engine-0", beat(30, 5, 5), 3.0)
    assert figures.metrics()["perf/tokens_per_gpu_per_sec"] == pytest.approx(20.0)
