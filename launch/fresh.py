"""Writes the fresh checkpoint that `model.create` describes, in a process of its own.

The user's function imports torch; the process that will watch the run must not. Run as
`python -P -m milepost.launch.fresh ORDER`, this file is that process; its order is JSON.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from milepost.actors.lifeline import tie_to_parent
from milepost.configs.problem import ConfigError, Problem
from milepost.configs.run import ModelConfig
from milepost.supervisor.initial_model import note_made

LAST_LINES = 5
"""Lines of the child's log that are shown when it fails."""


class Order(msgspec.Struct, frozen=True):
    """What the child is to do."""

    function: str
    folder: str
    seed: int
    options: dict[str, Any]


def write_fresh(model: ModelConfig, folder: Path, seed: int, log: Path, deadline_s: float) -> None:
    """Call `model.create` in a child process; afterwards `folder` is there, whole.

    Args:
        model: with `create` and `create_options`.
        folder: of the checkpoint; nothing is done when it exists, as on a resume. Beside it is
            noted how it was made.
        seed: given to the function.
        log: gets what the child prints.
        deadline_s: the child is killed after it.

    Raises:
        ConfigError: the function failed, wrote nothing, or took too long.
    """
    if folder.is_dir():
        return
    growing = folder.with_name(f"{folder.name}.growing")
    shutil.rmtree(growing, ignore_errors=True)
    growing.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    order = Order(model.create, str(growing), seed, model.create_options)
    try:
        how = _run_child(order, log, deadline_s)
        if not how and not (growing / "config.json").is_file():
            how = "wrote no config.json"
        if how:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
            what = "\n  ".join([f"`{model.create}` {how}", *lines])
            raise ConfigError([Problem(what, "$.model.create", f"the whole log is {log}")])
        note_made(folder.parent, model)
        # A folder that exists is a folder that is whole.
        growing.rename(folder)
    finally:
        # Of one that failed, or that somebody interrupted; else it has its name by now.
        shutil.rmtree(growing, ignore_errors=True)


def _run_child(order: Order, log: Path, deadline_s: float) -> str:
    """What went wrong, or nothing."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "milepost.launch.fresh", msgspec.json.encode(order)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return f"took longer than system.timeouts.ready_s = {deadline_s:g}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode
    if not code:
        return ""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed (exit {code})"


def main() -> None:
    """Carry out the order on the command line."""
    tie_to_parent()
    order = msgspec.json.decode(sys.argv[1], type=Order)
    module, _, name = order.function.partition(":")
    function: Callable[[str, int, dict[str, Any]], None] = vars(import_module(module))[name]
    function(order.folder, order.seed, order.options)


if __name__ == "__main__":
    main()
