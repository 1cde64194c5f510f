"""Rates from counters that actors report: none is made up, none is negative."""

from __future__ import annotations

import pytest

from milepost.supervisor.recording.rates import SystemFigures


def beat(at_s: float, generated: int, *drafts: int) -> dict[str, object]:
    """Of an engine; `drafts` are tokens proposed, accepted, and passes that judged them."""
    names = ("draft_tokens", "draft_tokens_accepted", "draft_passes")
    return {
        "rss_mib": 512.0,
        "cpu_share": 0.25,
        "uptime_s": at_s,
        "generated_tokens": generated,
        **dict(zip(names, drafts, strict=False)),
    }


def test_rates_are_those_between_the_last_two_heartbeats_of_each_engine() -> None:
    figures = SystemFigures()
    figures.heard("rollout", "rollout", {"rss_mib": 1024.0})
    figures.heard("engine-0", "engine", beat(1.0, 1000))
    bodies = {
        "perf/cpu_memory_actors_gb": 1.5,
        "system/rollout/memory_gib": 1.0,
        "system/rollout/cores": 0.0,
        "system/engine/memory_gib": 0.5,
        "system/engine/cores": 0.25,
    }
    assert figures.metrics() == bodies, "one beat is no rate"
    figures.heard("engine-0", "engine", beat(2.0, 1200))
    figures.heard("engine-1", "engine", beat(2.0, 0))
    figures.heard("engine-1", "engine", beat(4.0, 800))
    assert figures.metrics() == bodies | {
        "perf/cpu_memory_actors_gb": 2.0,
        "system/engine/memory_gib": 1.0,
        "system/engine/cores": 0.5,
        "perf/tokens_per_gpu_per_sec": pytest.approx(300.0),
    }


def test_a_restarted_engine_begins_to_count_again() -> None:
    figures = SystemFigures()
    figures.heard("engine-0", "engine", beat(1.0, 1000))
    figures.heard("engine-0", "engine", beat(2.0, 10))
    assert "perf/tokens_per_gpu_per_sec" not in figures.metrics()
    figures.heard("engine-0", "engine", beat(3.0, 30))
    assert figures.metrics()["perf/tokens_per_gpu_per_sec"] == pytest.approx(20.0)


def test_drafts_are_those_of_engines_that_speculate_and_of_no_other() -> None:
    """Tokens of an engine without a draft model would make the accepted length too long."""
    figures = SystemFigures()
    for plain, drafting in (
        (beat(1.0, 0), beat(1.0, 100, 90, 60, 30)),
        (beat(2.0, 5000), beat(2.0, 100 + 40, 90 + 30, 60 + 21, 30 + 10)),
    ):
        figures.heard("engine-0", "engine", plain)
        figures.heard("engine-1", "engine", drafting)
    found = figures.metrics()
    assert found["rollout/spec_accept_rate"] == pytest.approx(21 / 30)
    assert found["rollout/spec_accept_length"] == pytest.approx(40 / 10)
    figures.heard("engine-1", "engine", beat(3.0, 100, 90, 60, 30))
    assert "rollout/spec_accept_rate" not in figures.metrics(), "it began to count again"


def test_engines_that_only_evaluate_count_for_no_rate_of_the_rollout() -> None:
    """They stand idle between evaluations, and the monitor multiplies by the rollout's engines."""
    figures = SystemFigures()
    for at_s in (1, 2):
        figures.heard(
            "engine-0", "engine", beat(at_s, 1000 * at_s, 90 * at_s, 45 * at_s, 30 * at_s)
        )
        idle = beat(at_s, 0, 90 * at_s, 0, 30 * at_s)
        figures.heard("evaluation_engine-0", "evaluation_engine", idle)
    found = figures.metrics()
    assert found["perf/tokens_per_gpu_per_sec"] == pytest.approx(1000.0)
    assert found["rollout/spec_accept_rate"] == pytest.approx(0.5)
    assert found["system/evaluation_engine/memory_gib"] == 0.5


def test_gpus_of_a_kind_are_summed_in_memory_and_averaged_in_work() -> None:
    figures = SystemFigures()
    for index, (memory_mib, share) in enumerate([(1024.0, 0.5), (2048.0, 1.0)]):
        said = {"gpu_memory_mib": memory_mib, "gpu_utilization": share}
        figures.heard(f"engine-{index}", "engine", said)
    figures.heard("trainer-0", "trainer", {"gpu_problem": "no driver"})
    found = figures.metrics()
    assert found["system/engine/gpu_memory_gib"] == 3.0
    assert found["system/engine/gpu_utilization"] == 0.75
    assert "system/trainer/gpu_memory_gib" not in found


def test_beats_that_are_read_at_once_or_come_early_make_no_rate_that_never_was() -> None:
    """A supervisor that stood still for a while finds them all in its mailbox; and an engine says
    a last word just behind its last but one."""
    figures = SystemFigures()
    for at_s, generated in ((10.0, 0), (11.0, 300), (12.0, 600)):
        figures.heard("engine-0", "engine", beat(at_s, generated))
    assert figures.metrics()["perf/tokens_per_gpu_per_sec"] == pytest.approx(300.0)
    figures.heard("engine-0", "engine", beat(12.002, 660))
    assert figures.metrics()["perf/tokens_per_gpu_per_sec"] == pytest.approx(360 / 1.002)
    figures.heard("engine-0", "engine", beat(13.0, 900))
    assert figures.metrics()["perf/tokens_per_gpu_per_sec"] == pytest.approx(240 / 0.998)
