"""One snapshot of a run as families of Prometheus samples.

Names are those of the table of metrics, `milepost_` in front and each sign that is no letter an
underscore; a part that only a run knows is a label: `eval/sampled/reward` becomes
`milepost_eval_reward{mode="sampled"}`. Numbers of each actor carry its name and kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from milepost.configs.metrics import METRICS, Metric
from milepost.configs.metrics.metric import PART
from milepost.messages.supervisor import Snapshot

PREFIX: Final = "milepost"
STRANGE: Final = re.compile(r"[^a-zA-Z0-9]+")
MIB: Final = 1 << 20
ACTOR: Final = ("actor", "kind")
UP: Final = ("up", "1 while the supervisor of the run is heard")
OTHER: Final = Metric("other/{name}", "1", "metrics of the run's own, by name")

GAUGES: Final = (
    ("memory_bytes", ("rss_mib",), MIB, "resident memory"),
    ("uptime_seconds", ("uptime_s",), 1, "since the process started"),
    ("open_requests", ("open_requests",), 1, "questions that wait for an answer"),
    ("mailbox_depth", ("bus", "mailbox", "depth"), 1, "messages that arrived and were not taken"),
    ("mailbox_oldest_seconds", ("bus", "mailbox", "oldest_age_s"), 1, "age of the oldest of them"),
    ("mailbox_paused", ("bus", "mailbox", "paused"), 1, "1: senders fill up and wait"),
    ("loop_delay_p50_seconds", ("bus", "loop", "p50_ms"), 1e-3, "lateness of the event loop"),
    ("loop_delay_p99_seconds", ("bus", "loop", "p99_ms"), 1e-3, "lateness of the event loop"),
    ("gpu_memory_bytes", ("gpu_memory_mib",), MIB, "used on its GPUs, by whomever"),
    ("gpu_utilization", ("gpu_utilization",), 1, "share of time that a kernel ran there"),
)
COUNTERS: Final = (
    ("cpu_seconds", ("cpu_s",), "processor time"),
    ("messages_received", ("bus", "mailbox", "received"), "messages put into the inbox"),
    ("messages_duplicate", ("bus", "mailbox", "duplicates"), "repeats dropped by their number"),
    ("messages_refused", ("bus", "mailbox", "refused"), "messages that could not be read"),
    ("generated_tokens", ("generated_tokens",), "tokens that an engine sampled"),
    ("prefilled_tokens", ("prefilled_tokens",), "tokens of prompts that an engine computed"),
)


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Everything that the snapshot knows."""
    yield gauge(*UP, 1.0)
    run = snapshot.run
    facts = {name: str(run[name]) for name in ("name", "run_id", "phase")}
    about = GaugeMetricFamily(f"{PREFIX}_run", "the run, and the phase it is in", labels=[*facts])
    about.add_metric([*facts.values()], 1.0)
    yield about
    yield gauge("run_step", "batches trained", float(run["step"]))
    yield gauge("run_steps", "batches to train", float(run["steps"]))
    yield gauge("run_elapsed_seconds", "since the run started", float(run["elapsed_s"]))
    yield from _of_run(snapshot.last_metrics)
    yield from _of_actors(snapshot.actors)


def gauge(name: str, meaning: str, value: float) -> Family:
    """One number without labels."""
    return GaugeMetricFamily(f"{PREFIX}_{name}", meaning, value=value)


def _of_run(metrics: Mapping[str, float]) -> Iterator[Family]:
    found: dict[str, GaugeMetricFamily] = {}
    for name, value in metrics.items():
        metric, plain, source = METRICS.split(name)
        metric, parts = (metric, metric.parts(plain)) if metric else (OTHER, {"name": plain})
        family = found.get(metric.name)
        if family is None:
            labels = [*parts, "source"]
            help_text = f"{metric.meaning} ({metric.unit})"
            family = GaugeMetricFamily(prometheus_name(metric), help_text, labels=labels)
            found[metric.name] = family
        family.add_metric([*parts.values(), source], value)
    yield from found.values()


def prometheus_name(metric: Metric) -> str:
    """`rollout/zero_std/count_{reward}` becomes `milepost_rollout_zero_std_count`."""
    return f"{PREFIX}_{STRANGE.sub('_', PART.sub(' ', metric.name)).strip('_')}"


def _of_actors(actors: list[dict[str, Any]]) -> Iterator[Family]:
    states = GaugeMetricFamily(
        f"{PREFIX}_actor_state", "1 for the state it is in", labels=[*ACTOR, "state"]
    )
    restarts = CounterMetricFamily(f"{PREFIX}_actor_restarts", "how often", labels=ACTOR)
    heard = GaugeMetricFamily(f"{PREFIX}_actor_heard_seconds", "since it was heard", labels=ACTOR)
    for actor in actors:
        labels = [actor["actor"], actor["kind"]]
        states.add_metric([*labels, actor["state"]], 1.0)
        restarts.add_metric(labels, float(actor["restarts"]))
        if actor["heard_s"] is not None:
            heard.add_metric(labels, float(actor["heard_s"]))
    yield from (states, restarts, heard)
    for name, path, scale, meaning in GAUGES:
        family = GaugeMetricFamily(f"{PREFIX}_actor_{name}", meaning, labels=ACTOR)
        _fill(family, actors, path, scale)
        yield family
    for name, path, meaning in COUNTERS:
        counter = CounterMetricFamily(f"{PREFIX}_actor_{name}", meaning, labels=ACTOR)
        _fill(counter, actors, path, 1)
        yield counter


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily,
    actors: list[dict[str, Any]],
    path: tuple[str, ...],
    scale: float,
) -> None:
    for actor in actors:
        value: Any = actor["statistics"]
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            family.add_metric([actor["actor"], actor["kind"]], value * scale)
