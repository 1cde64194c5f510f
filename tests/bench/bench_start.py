"""What a run of ten actors without torch costs to start, to keep and to stop; and a first word.

    pytest tests/bench/bench_start.py -s

The floor is eleven bare Python processes that import what an actor must (uvloop, pyzmq, msgspec,
msgpack) and say one word; both are started at once, in turns, so that a busy machine disturbs both.
Memory is the proportional set size: shared pages count once over all processes.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from proc.runs import custom, leftovers, running, topology

TEN = custom("idle", "idle", replicas=10)
ROUNDS = 3
PSS_MIB_MAX = 40.0
HELP = "from milepost.launch.cli import main; main(['--help'])"
HELP_S_MAX = 0.5
FLOOR = "import asyncio, msgpack, msgspec, uvloop, zmq.asyncio; print('here', flush=True); input()"


def pss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def bare_processes() -> tuple[float, float]:
    """Seconds to start eleven, and to end them."""
    began = time.perf_counter()
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(11)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
    started = time.perf_counter()
    for child in children:
        child.communicate(b"\n")
    return started - began, time.perf_counter() - started


def one_run(folder: Path) -> tuple[float, float, list[float]]:
    """Seconds until all actors are ready, seconds to stop, MiB of each actor and the supervisor."""
    folder.mkdir()
    with running(folder, topology(TEN)) as run:
        run.begun()
        started_s = time.monotonic() - run.started_s
        children = run.children()
        janitor = children.pop("janitor")
        assert len(children) == 10
        sizes = [pss_mib(pid) for pid in (run.process.pid, *(c.pid for c in children.values()))]
        assert pss_mib(janitor.pid) < PSS_MIB_MAX
        began = time.perf_counter()
        run.signal(signal.SIGINT)
        assert run.end() == 1
        stopped_s = time.perf_counter() - began
        assert leftovers(run.run_id, run.sockets) == []
    return started_s, stopped_s, sizes


def middle(values: Iterable[float]) -> float:
    return statistics.median(values)


def test_ten_actors(tmp_path: Path) -> None:
    """Targets on two idle cores: ready in 2 s, gone in 1 s, 40 MiB a process."""
    ours, floors = [], []
    for number in range(ROUNDS):
        floors.append(bare_processes())
        ours.append(one_run(tmp_path / str(number)))
    start, stop = middle(one[0] for one in ours), middle(one[1] for one in ours)
    sizes = [size for one in ours for size in one[2]]
    floor = middle(one[0] for one in floors)
    print(
        f"ten actors  start {start:.2f} s (<= 2)  stop {stop:.2f} s (<= 1)  "
        f"memory {middle(sizes):.0f} MiB, largest {max(sizes):.0f} MiB (<= {PSS_MIB_MAX:.0f}) | "
        f"eleven bare processes {floor:.2f} s | start x{start / floor:.2f}"
    )
    assert max(sizes) <= PSS_MIB_MAX


def processor_s(script: str) -> float:
    """Processor time of an interpreter that runs this, the least of several times."""

    def once() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-P", "-c", script], stdout=subprocess.DEVNULL, check=False)
        after = os.times()
        spent_s = after.children_user + after.children_system
        return spent_s - before.children_user - before.children_system

    return min(once() for _ in range(ROUNDS))


def test_help() -> None:
    """The command line answers in a small part of a second, as an interpreter that does nothing."""
    ours, floor = processor_s(HELP), processor_s("")
    print(f"milepost --help {ours:.2f} s (<= {HELP_S_MAX}) | python {floor:.2f} s", end=" ")
    print(f"| x{ours / floor:.1f}")
