"""What Prometheus is told: parsed back by its own parser."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from proc.bus.harness import until
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from milepost.configs.metrics import METRICS
from milepost.configs.run import PrometheusConfig
from milepost.messages.supervisor import Snapshot
from milepost.supervisor.companions import Companions
from milepost.supervisor.exporter.families import families, prometheus_name
from milepost.supervisor.exporter.server import Newest, when_it_ends

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def actor(name: str, **statistics: Any) -> dict[str, Any]:
    return {
        "actor": name,
        "kind": name.partition("-")[0],
        "state": "running",
        "restarts": 2,
        "heard_s": 0.25,
        "statistics": statistics,
    }


def snapshot(metrics: dict[str, float], *actors: dict[str, Any]) -> Snapshot:
    run = {
        "name": "lookup",
        "run_id": "ab",
        "phase": "running",
        "step": 3,
        "steps": 40,
        "elapsed_s": 12.5,
    }
    return Snapshot(run=run, actors=list(actors), last_metrics=metrics, events=[])


def samples(source: Newest) -> Samples:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(source)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(metrics: dict[str, float], *actors: dict[str, Any]) -> Samples:
    source = Newest()
    source.take(snapshot(metrics, *actors))
    return samples(source)


def test_metrics_of_the_run_keep_their_names_and_parts_become_labels() -> None:
    found = told(
        {
            "train/loss": -0.5,
            "train/loss@trainer-1": -0.25,
            "eval/sampled/reward": 0.75,
            "eval/greedy/reward": 0.5,
            "rollout/zero_std/count_0.5": 4.0,
            "passrate/pass@4": 0.75,
            "my own/thing": 1.0,
        }
    )
    assert found["milepost_train_loss", (("source", ""),)] == -0.5
    assert found["milepost_train_loss", (("source", "trainer-1"),)] == -0.25
    assert found["milepost_eval_reward", (("mode", "greedy"), ("source", ""))] == 0.5
    assert found["milepost_eval_reward", (("mode", "sampled"), ("source", ""))] == 0.75
    assert found["milepost_passrate_pass", (("k", "4"), ("source", ""))] == 0.75
    counts = "milepost_rollout_zero_std_count"
    assert found[counts, (("reward", "0.5"), ("source", ""))] == 4.0
    assert found["milepost_other", (("name", "my own/thing"), ("source", ""))] == 1.0
    assert found["milepost_run_step", ()] == 3.0
    assert found["milepost_up", ()] == 1.0


def test_every_actor_has_its_body_and_its_mailbox() -> None:
    bus = {"mailbox": {"depth": 7, "paused": True, "received": 90}, "loop": {"p99_ms": 2.5}}
    engine = actor("engine-0", rss_mib=2.0, cpu_s=9.5, bus=bus, gpu_utilization=0.5)
    found = told({}, engine, actor("buffer"))
    labels = (("actor", "engine-0"), ("kind", "engine"))
    assert found["milepost_actor_memory_bytes", labels] == 2 * 2**20
    assert found["milepost_actor_cpu_seconds_total", labels] == 9.5
    assert found["milepost_actor_mailbox_depth", labels] == 7
    assert found["milepost_actor_mailbox_paused", labels] == 1
    assert found["milepost_actor_messages_received_total", labels] == 90
    assert found["milepost_actor_loop_delay_p99_seconds", labels] == 0.0025
    assert found["milepost_actor_gpu_utilization", labels] == 0.5
    assert found["milepost_actor_restarts_total", labels] == 2
    assert found["milepost_actor_state", (*labels, ("state", "running"))] == 1
    other = (("actor", "buffer"), ("kind", "buffer"))
    assert ("milepost_actor_memory_bytes", other) not in found, "what nobody said is not 0"


def test_a_run_that_is_not_heard_has_no_figures() -> None:
    """The last ones would look like those of now."""
    assert samples(Newest()) == {("milepost_up", ()): 0.0}


def test_no_two_metrics_share_a_name_there() -> None:
    """Signs are lost on the way; two families of one name would be refused by the scrape."""
    names = [prometheus_name(metric) for metric in METRICS]
    assert len(names) == len(set(names))
    own = {family.name for family in families(snapshot({}, actor("buffer")))}
    assert not own & set(names)


def test_the_exporter_is_told_where_the_run_publishes_and_reads_no_file_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of its start may not be written yet, or be those of the life before it."""
    started: list[list[str]] = []

    def start(_self: Companions, name: str, words: list[str], *_: Any) -> None:
        started.append([name, *words])

    monkeypatch.setattr(Companions, "_start", start)
    monkeypatch.setattr(Companions, "_track", lambda *_: None)
    owned: list[dict[str, Any]] = []
    companions = Companions(tmp_path, "ab", lambda _: None, owned.append)
    companions.start_exporter(PrometheusConfig(port=0), "ipc:///there")
    ((name, module, where, run_id, descriptor, key_file),) = started
    assert (name, module) == ("prometheus", "milepost.supervisor.exporter.server")
    assert (where, run_id, key_file) == ("ipc:///there", "ab", "")
    assert descriptor.isdecimal()
    assert [(one["kind"], one["actor"]) for one in owned] == [("listener", "prometheus")]


async def test_the_end_of_the_pipe_is_told_once() -> None:
    """It stays readable: the loop turned for nothing while the last scrape was answered."""
    told: list[int] = []
    reading, writing = os.pipe()
    when_it_ends(reading, lambda: told.append(1))
    os.close(writing)
    await until(lambda: bool(told), "the end of the pipe", 20)
    for _ in range(20):
        await asyncio.sleep(0)
    os.close(reading)
    assert told == [1]
