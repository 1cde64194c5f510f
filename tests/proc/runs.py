"""Starts a supervisor of trivial actors as a process, watches it, and looks for what it left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from milepost.supervisor.cleanup.processes import RUN_VARIABLE

TESTS: Final = Path(__file__).parent.parent
DEADLINE_S: Final = 30.0
BEGUN: Final = "all actors are ready"


def topology(text: str, *, name: str = "trivial", steps: int = 3) -> str:
    """A topology with short deadlines and these custom actors."""
    head = f"""
[run]
name = "{name}"
steps = {steps}
[system.timeouts]
hello_s = 30.0
ready_s = 30.0
heartbeat_s = 4.0
drain_s = 5.0
stop_s = 2.0
"""
    return head + text


def custom(name: str, core: str, options: str = "", **keys: object) -> str:
    """One `[custom.NAME]` table; `options` is TOML of its options, `keys` plain values."""
    lines = [f"[custom.{name}]", f'core = "proc.trivial:{core}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items() if key != "restart"]
    if "restart" in keys:
        lines.append(f"[custom.{name}.restart]\n{keys['restart']}")
    if options:
        lines.append(f"[custom.{name}.options]\n{options}")
    return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    """Ours, with the tests' folder in front of the path: actors are `proc.trivial:...` there."""
    paths = [str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


class Running:
    """One supervisor process and its run folder."""

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        self.folder = folder / "run"
        file = folder / "topology.toml"
        file.write_text(text)
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "proc.supervised",
                str(file),
                str(self.folder),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
        self.output = b""

    def until(self, text: str, deadline_s: float = DEADLINE_S) -> str:
        """Wait until the supervisor has printed this; returns the line with it."""
        assert self.process.stdout is not None
        until_s = time.monotonic() + deadline_s
        while text.encode() not in self.output:
            left_s = until_s - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, left_s))
            assert readable, f"{text!r} did not come within {deadline_s} s:\n{self.text}"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, f"the supervisor ended before {text!r}:\n{self.text}"
            self.output += piece
        return next(line for line in self.text.splitlines() if text in line)

    def begun(self) -> Running:
        self.until(BEGUN)
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        piece, _ = self.process.communicate(timeout=deadline_s)
        self.output += piece
        return self.process.returncode

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")

    @property
    def run_id(self) -> str:
        return str(self.run_facts["run_id"])

    @property
    def run_facts(self) -> dict[str, Any]:
        return self.json(".milepost/run.json")

    @property
    def sockets(self) -> Path:
        return Path(self.run_facts["endpoint"].removeprefix("ipc://")).parent

    @property
    def summary(self) -> dict[str, Any]:
        return self.json("summary.json")

    def json(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / name).read_bytes()))

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.lines("events.jsonl")]

    def children(self) -> dict[str, psutil.Process]:
        """Actors by name, and `janitor`."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                spec = words[-1] if words else ""
                name = "janitor" if "supervisor.cleanup.janitor" in " ".join(words) else ""
                found[name or Path(spec).stem] = child
        return found

    def close(self) -> None:
        """Whatever a test did, nothing survives it, and the janitor has seen to that."""
        file = self.folder / ".milepost/run.json"
        mine = file.exists() and self.run_facts["pid"] == self.process.pid
        if self.process.poll() is None:
            processes = list(self.children().values())
            self.process.kill()
            self.process.communicate()
            assert wait_gone(processes) == []
        elif self.process.stdout is not None:
            self.process.stdout.close()
        if mine:
            assert leftovers(self.run_id, self.sockets) == []


def members(run_id: str) -> list[psutil.Process]:
    """Processes that belong to the run, found by their environment: the test's own way."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.environ().get(RUN_VARIABLE) == run_id
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def wait_gone(processes: Iterable[psutil.Process], deadline_s: float = 10.0) -> list[str]:
    """Names of those still there after the deadline."""
    _, alive = psutil.wait_procs(list(processes), timeout=deadline_s)
    return [repr(process) for process in alive]


def leftovers(run_id: str, sockets: Path) -> list[str]:
    """Everything of a run that can still be found on this machine."""
    left = [repr(process) for process in members(run_id)]
    left += [str(sockets)] if sockets.exists() else []
    left += [str(path) for path in Path("/dev/shm").glob(f"*{run_id}*")]
    return left


@contextlib.contextmanager
def running(folder: Path, text: str, *arguments: str) -> Iterator[Running]:
    """A supervisor that is gone at the end of the block."""
    run = Running(folder, text, *arguments)
    try:
        yield run
    finally:
        run.close()
