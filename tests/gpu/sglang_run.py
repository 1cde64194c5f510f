"""One job with an SGLang engine and an FSDP trainer on GPUs, and its figures as JSON lines.

    python -P tests/gpu/sglang_run.py RUN --engine cuda:0 --trainer cuda:1 --update distributed

The quick start's task with the layers of Qwen3-0.6B and fresh weights: replies are noise, so what
is measured is the machinery: steps, publications, memory, and whether both sides compute the same.
`--colocated`: a synchronous run, in which the engine gives its cache's memory back while the
trainer trains. `--taught`: a run that learns: the small model of the quick start, with heads that
a GPU's attention kernels take, is taught by the warm-up first and then goes through the recipe as
it is; its held-out success before and after is in the report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from milepost.launch.cli import main as milepost

LAYERS = {
    "hidden": 1024,
    "layers": 28,
    "heads": 16,
    "kv_heads": 8,
    "head": 128,
    "feed_forward": 3072,
    "context_tokens_max": 2048,
}
CREATE = "milepost.configs.recipes.lookup.model:create"
SMALL = {"head": 64, "kv_heads": 1, "heads": 2}


def server(arguments: argparse.Namespace) -> dict[str, Any]:
    """Where engine and trainer are, and how the weights get over."""
    small = arguments.small
    staging = arguments.trainer if arguments.update == "distributed" and not small else ""
    return {
        "model.dtype": "float32" if small else "bfloat16",
        "actors.engine.kind": "sglang",
        "actors.engine.device": "cpu" if small else arguments.engine,
        "actors.engine.sglang.python": os.environ["MILEPOST_SGLANG_PYTHON"],
        "actors.engine.sglang.update": arguments.update,
        "actors.engine.sglang.staging_device": staging,
        "actors.engine.sglang.options": json.loads(os.environ.get("MILEPOST_SGLANG_OPTIONS", "{}")),
        "actors.engine.sglang.environment": json.loads(
            os.environ.get("MILEPOST_SGLANG_ENVIRONMENT", "{}")
        ),
        "actors.engine.sglang.release_memory": arguments.colocated,
        "actors.trainer.device": "cpu" if small else arguments.trainer,
        "actors.publisher.canary_difference_max": 1e-4 if small else 0.5,
    }


def machinery(arguments: argparse.Namespace) -> dict[str, Any]:
    """What else differs from the quick start in a run that measures and learns nothing."""
    small = arguments.small
    return {
        "run.steps": 3 if small else 10,
        "model.made_by": "",
        "model.create": CREATE,
        "model.create_options": SMALL if small else LAYERS,
        "model.context_tokens_max": 256 if small else 1024,
        "algorithm.prompts_per_step": 4 if small else 16,
        "guard.batches_without_spread_max": 0,
        "limits.reply_tokens_max": 24 if small else 256,
        "limits.tokens_max": 256 if small else 1024,
        "actors.rollout.trajectories_in_flight_max": 64 if small else 256,
        "actors.buffer.groups_max": 8 if small else 32,
        "actors.engine.running_max": 64 if small else 256,
        "actors.engine.slots": 64 if small else 256,
        "actors.trainer.lr": 1e-5,
        "actors.trainer.microbatch_tokens_max": 8192,
        "actors.evaluator.prompts_max": 32,
    }


def teach(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the warm-up with the small model; what makes the recipe go on from it."""
    folder = arguments.folder.with_name(f"{arguments.folder.name}-warmup")
    given = {
        "model.create_options": SMALL,
        "actors.trainer.device": "cpu" if arguments.small else arguments.trainer,
    }
    if code := start("lookup_warmup", folder, given):
        raise SystemExit(code)
    (made,) = (folder / "checkpoints").glob("step_*/hf")
    return {"model.made_by": "", "model.path": str(made)}


def start(recipe: str, folder: Path, given: dict[str, Any]) -> int:
    """`milepost run`; its exit code."""
    words = ["run", recipe, "--plain", "--out", str(folder)]
    for name, value in given.items():
        words += ["--set", f"{name}={toml(value)}"]
    return milepost(words)


def toml(value: Any) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def watch_memory(peaks: list[int], stop: threading.Event) -> None:
    """Highest memory of each GPU, looked at every half second."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    while not stop.wait(0.5):
        used = [int(line) for line in subprocess.check_output(command, text=True).split()]
        peaks[:] = [max(pair) for pair in zip(used, peaks or [0] * len(used), strict=True)]


def report(folder: Path, peaks: list[int]) -> None:
    """Steps and publications out of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    figures = {}
    for name in sorted({name for row in rows for name in row if "/" in name}):
        # The first two are of a machine that is still warming up.
        values = [row[name] for row in rows if isinstance(row.get(name), int | float)][2:]
        if values:
            figures[name] = round(sum(values) / len(values), 6)
    print(json.dumps({"rows": len(rows), "means": figures}))  # noqa: T201
    print(json.dumps({"peak_memory_mb": peaks}))  # noqa: T201
    summary = json.loads((folder / "summary.json").read_text())
    print(json.dumps({"status": summary["status"], "scores": summary["scores"]}))  # noqa: T201


def main() -> int:
    """Run, then report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="cuda:0")
    parser.add_argument("--trainer", default="cuda:0")
    parser.add_argument("--update", default="tensors")
    parser.add_argument("--colocated", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--taught", action="store_true")
    parser.add_argument("--steps", type=int, help="fewer than the recipe has")
    arguments = parser.parse_args()
    recipe = "lookup_sync" if arguments.colocated else "lookup"
    shape = teach(arguments) if arguments.taught else machinery(arguments)
    if arguments.steps:
        shape["run.steps"] = arguments.steps
    peaks: list[int] = []
    stop = threading.Event()
    watcher = threading.Thread(target=watch_memory, args=(peaks, stop))
    if not arguments.small:
        watcher.start()
    try:
        code = start(recipe, arguments.folder, server(arguments) | shape)
    finally:
        stop.set()
    report(arguments.folder, peaks)
    return code


if __name__ == "__main__":
    sys.exit(main())
