"""A run as a monitor is told of it, made by hand: snapshots, steps, events, copies."""

from __future__ import annotations

from typing import Any

from milepost.launch.monitor.model import Model
from milepost.launch.monitor.updates import About, Attached, Heard, Recorded, Update
from milepost.launch.traffic.seen import Array, Seen
from milepost.messages.supervisor import Snapshot

WALL_S = 1_796_000_000.0
NAMES = (
    "trainer-0",
    "engine-0",
    "publisher",
    "buffer",
    "session-0",
    "agent-0",
    "rollout",
    "evaluator",
)


def about(**changed: Any) -> About:
    facts = {"name": "lookup", "folder": "runs/lookup", "steps": 80, "difference_max": 1e-4}
    return About(**{**facts, **changed})


def mailbox(**changed: Any) -> dict[str, Any]:
    names = ("depth", "peak", "senders", "blocked_senders", "received", "handled", "duplicates")
    zeros = dict.fromkeys((*names, "gaps", "skipped", "refused", "strangers"), 0)
    return {**zeros, "max": 4096, "oldest_age_s": 0.0, **changed}


def link(peer: str, **changed: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(("depth", "peak", "unacked", "sent", "retries", "failed"), 0)
    return {"peer": peer, "problem": "", "window": 256, "oldest_age_s": 0.0, **zeros, **changed}


def bus(*links: dict[str, Any], box: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "mailbox": box or mailbox(received=4),
        "links": list(links),
        "loop": {"p99_ms": 12.4},
        "failed_inside": 0,
    }


def actor(name: str, **changed: Any) -> dict[str, Any]:
    kind, _, index = name.rpartition("-")
    return {
        "actor": name,
        "kind": kind if index.isdecimal() else name,
        "state": "running",
        "state_s": 70.0,
        "pid": 4711,
        "restarts": 0,
        "heard_s": 0.4,
        "progress_s": 0.4,
        "working_on": f"{name} works",
        "finished": False,
        "facts": {"device": "cpu"},
        "ports": [],
        "statistics": {"rss_mib": 40.0, "cpu_share": 0.25, "uptime_s": 70.0, "bus": bus()},
        **changed,
    }


def with_numbers(name: str, **numbers: Any) -> dict[str, Any]:
    """An actor with numbers of its own."""
    found = actor(name)
    found["statistics"] |= numbers
    return found


def actors(version: int = 3) -> list[dict[str, Any]]:
    """The eight of a quick start."""
    numbers: dict[str, dict[str, Any]] = {
        "trainer-0": {"version": version, "groups_trained": 8 * version},
        "engine-0": {"version": version, "generated_tokens": 1000 * version},
        "buffer": {
            "queue": 5,
            "queue_max": 8,
            "queue_s_old_max": 1,
            "assembling": 2,
            "ranks_waiting": [],
            "tokens_held": 300,
            "tokens_by_account": {"trained": 4000, "evaluated": 900, "filtered_zero_spread": 100},
        },
        "session-0": {"accounts": {"evaluated": 900}, "tokens_sampled": 5500},
        "rollout": {
            "issued": 40,
            "trained": 8 * version,
            "dropped": {"zero_spread": 3},
            "open": 40 - 8 * version - 3 - 5,
            "stored": 5,
            "credits": 2,
            "oldest": [
                {
                    "trajectory_id": "g0000041.0",
                    "stage": "running",
                    "owner": "agent-0",
                    "since_s": 90.0,
                }
            ],
        },
    }
    return [with_numbers(name, **numbers.get(name, {})) for name in NAMES]


def snapshot(version: int = 3, **changed: Any) -> Snapshot:
    run = {
        "name": "lookup",
        "phase": "running",
        "phase_s": 60.0,
        "elapsed_s": 60.0 + version,
        "step": version,
        "steps": 80,
        "folder": "runs/lookup",
        "waiting": "",
        "pid": 4700,
        "statistics": {"rss_mib": 41.0, "cpu_share": 0.02, "bus": bus()},
        **changed.pop("run", {}),
    }
    found = {"run": run, "actors": actors(version), "last_metrics": {}, "events": [], **changed}
    return Snapshot(**found)


def heard(version: int = 3, at_s: float | None = None, **changed: Any) -> Heard:
    """The snapshot of the time at which that version is served."""
    after_s = float(version) if at_s is None else at_s
    told = snapshot(version, **changed)
    return Heard(snapshot=told, wall_s=WALL_S + after_s, clock_s=100.0 + after_s)


def step(done: int, success: float = 0.5, **metrics: float) -> dict[str, Any]:
    """One object of metrics.jsonl."""
    return {
        "step": done,
        "time": WALL_S + done,
        "train/version": float(done),
        "train/loss": -0.01,
        "train/loss_tokens": 1000.0,
        "train/entropy": 0.2,
        "train/train_rollout_logprob_abs_diff": 0.02,
        "train/train_rollout_logprob_abs_diff_same_version": 1e-7,
        "train/staleness/mean": 1.0,
        "train/staleness/max": 2.0,
        "perf/step_time": 0.5,
        "perf/wait_time_ratio": 0.5,
        "perf/tokens_per_gpu_per_sec": 1500.0,
        "perf/update_weights_time": 0.03,
        "perf/canary_logprob_difference": 2e-8,
        "rollout/solved": success,
        "rollout/raw_reward": success + 0.1,
        "rollout/fully_async/queue_size": 3.0,
        "rollout/weight_version/sample_coverage": 1.0,
        "rollout/weight_version/mixed_version_ratio": 0.1,
        "rollout/staleness/s_old_mean": 1.0,
        "rollout/staleness/s_old_max": 2.0,
        **metrics,
    }


def event(kind: str, text: str, source: str = "supervisor", **values: Any) -> dict[str, Any]:
    """One object of events.jsonl."""
    return {"time": WALL_S, "source": source, "kind": kind, "text": text, "values": values}


def finished(name: str, reward: float = 1.0) -> Seen:
    """A trajectory on its way to the buffer, as a tap of its session copies it."""
    row = {
        "trajectory_id": name,
        "status": "completed",
        "reward": reward,
        "token_ids": Array("int32", [20], [5, 6, 7]),
        "num_sampled_tokens": 8,
        "spans": [[4, 8, 2], [12, 16, 3]],
        "turns": [
            {"prompt_end": 4, "end": 8, "finish_reason": "stop", "engine": "engine-0"},
            {"prompt_end": 12, "end": 16, "finish_reason": "stop", "engine": "engine-0"},
        ],
        "certificate": {"family": "qwen3", "seal": "ab12"},
        "metrics": {"solved": 1.0},
        "num_rows": 1,
    }
    return message("session-0", "buffer", "TrajectoryFinished", trajectory=row)


def message(
    source: str, to: str, kind: str, number: int = 1, cause: int = 0, **fields: Any
) -> Seen:
    """Any message that a tap copied."""
    envelope: dict[str, Any] = {"source": source, "to": to, "kind": "tell", "type": kind}
    envelope |= {"id": number, "cause": cause, "bytes": 300}
    return Seen(at_ns=10**18, envelope=envelope, fields=fields, is_whole=True)


def told(*updates: Update, **changed: Any) -> Model:
    """A model that was told these things, in this order."""
    model = Model(about(**changed))
    for update in updates:
        model.take(update)
    return model


def going_on(version: int = 3) -> Model:
    """A run in the middle: three steps, two events, one snapshot."""
    events = (
        event("begun", "all actors are ready after 7.5 s"),
        event("restarted", "engine-0 was killed by SIGKILL", "engine-0", attempt=1),
    )
    steps = tuple(step(number, 0.1 * number) for number in range(1, version + 1))
    return told(Attached(run_id="abc"), Recorded(steps=steps, events=events), heard(version))
