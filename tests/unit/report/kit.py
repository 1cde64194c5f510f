"""A run folder as a run leaves it, with the figures of the plain loop's first seed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from milepost.configs.dump import dump_topology
from milepost.configs.load import load_topology

STEPS = 80


def score(success: float, *parts: float) -> dict[str, Any]:
    categories = {f"{hops} hop{'s' * (hops > 1)}": part for hops, part in enumerate(parts, 1)}
    return {
        "num_episodes": 256,
        "success": success,
        "reward": success + 0.05 * (1 - success),
        "success_by_category": categories,
    }


def call(name: str, field: str) -> dict[str, Any]:
    function = {"name": "lookup", "arguments": json.dumps({"name": name, "field": field})}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def told(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


QUESTION = {"role": "user", "content": "What is the pet of the friend of <zoe>?"}
BEFORE = [QUESTION, call("zoe", "boss"), told("kai"), {"role": "assistant", "content": "kai"}]
AFTER = [
    QUESTION,
    call("zoe", "friend"),
    told("mia"),
    call("mia", "pet"),
    told("owl"),
    {"role": "assistant", "content": "owl"},
]


def evaluations() -> list[dict[str, Any]]:
    return [
        {
            "version": 0,
            "seconds": 2.0,
            "sampled": score(0.113, 0.21, 0.09, 0.04),
            "greedy": score(0.926, 0.95, 0.93, 0.9),
        },
        {
            "version": STEPS,
            "seconds": 1.5,
            "sampled": score(0.965, 0.98, 0.97, 0.95),
            "greedy": score(1.0, 1.0, 1.0, 1.0),
        },
    ]


def transcript(version: int, reward: float, messages: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "version": version,
        "greedy": False,
        "prompt_id": "held_out-1",
        "reward": reward,
        "messages": messages,
        **more,
    }


def metrics_lines() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [{"step": 0, "time": 999.7, "eval/sampled/solved": 0.113}]
    for step in range(1, STEPS + 1):
        wobble = 0.04 * math.sin(step * 2.1)
        success = min(1.0, max(0.0, 0.97 - 0.85 * math.exp(-step / 14) + wobble))
        lines.append(
            {
                "step": step,
                "train/version": step,
                "time": 1000.0 + 0.3 * step,
                "rollout/solved": success,
                "rollout/raw_reward": success + 0.05 * (1 - success),
                "train/staleness/mean": 1.0 + wobble,
                "train/staleness/max": 2.0,
                "train/loss": 0.01,
                "train/loss_tokens": 1500.0,
            }
        )
    lines[-1]["eval/sampled/solved"] = 0.965
    return lines


def write_run(folder: Path) -> Path:
    """Everything that a run of the recipe `lookup` leaves for people, as of its end."""
    folder.mkdir(parents=True)
    (folder / "topology.toml").write_text(dump_topology(load_topology("lookup")))
    lines = "".join(json.dumps(line) + "\n" for line in metrics_lines())
    (folder / "metrics.jsonl").write_text(lines)
    summary = {
        "status": "done",
        "exit_code": 0,
        "cause": None,
        "steps_done": STEPS - 1,
        "seconds": {"starting": 4.2, "running": 28.0, "stopping": 0.4, "total": 32.6},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    events = [
        {"time": 1000.0, "source": "evaluator", "kind": "evaluation", "text": "", "values": values}
        for values in evaluations()
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    talks = [transcript(0, 0.0, BEFORE), transcript(STEPS, 1.0, AFTER)]
    (folder / "transcripts.jsonl").write_text("".join(json.dumps(t) + "\n" for t in talks))
    (folder / "logs").mkdir()
    return folder
