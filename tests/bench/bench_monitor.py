"""What it costs to see the quick start: a monitor on a terminal, and the flight recorders.

Whole runs of the quick start's recipe take turns, one alone and one with a monitor on a terminal of
120 by 40 from its beginning to its end; recorders are on in both, as they always are. On a machine
that does nothing else the ratio of wall times is what the monitor costs. Beside it stands the
processor time of both over that of the run: the monitor's process from its start to its end, and
what each recorder counts of itself. As much longer takes a run that has use for all processors, and
a machine that is busy with other things changes it by its cold caches alone. `WANTED` is what both
together shall stay below; `COST_MAX` is what this fails above, on a busy machine, too.
"""

from __future__ import annotations

import os
import pty
import resource
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from statistics import median
from typing import Final

import orjson
import pytest
from msgspec import Struct

STEPS: Final = 80
PAIRS: Final = 3
WANTED: Final = 0.02
COST_MAX: Final = 0.05
SIZE: Final = (120, 40)
MILEPOST: Final = str(Path(sys.executable).with_name("milepost"))


class Cost(Struct, frozen=True):
    """Of one run."""

    wall_s: float
    """From the time that all actors were ready to the end of the work."""
    cpu_s: float
    """Of all processes of the run."""
    recorder_cpu_s: float
    """Of all recorders, a part of the same."""
    monitor_cpu_s: float = 0.0
    bytes_per_s: float = 0.0
    """That the monitor wrote to its terminal."""

    @property
    def shares(self) -> tuple[float, float]:
        """Of the recorders and the monitor, to the run without either."""
        bare_s = self.cpu_s - self.recorder_cpu_s
        return self.recorder_cpu_s / bare_s, self.monitor_cpu_s / bare_s


class Terminal:
    """A pseudo-terminal whose output is read, counted and thrown away."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.theirs = theirs
        self.num_bytes = 0
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:
                return  # the last process that had it is gone
            self.num_bytes += len(piece)

    def press(self, key: str) -> None:
        """Type one key."""
        os.write(self._ours, key.encode())

    def close(self) -> None:
        """Wait for the end of the output."""
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)


@contextmanager
def run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The quick start's run, from its start to its end."""
    command = [MILEPOST, "run", "lookup", "--plain", "--set", f"run.steps={STEPS}"]
    process = subprocess.Popen([*command, "--out", str(folder)], stdout=subprocess.DEVNULL)
    try:
        yield process
        assert process.wait(timeout=600) == 0
    finally:
        process.kill()
        process.wait()


def until_attachable(folder: Path) -> None:
    """Wait until the supervisor says how to attach."""
    end_s = time.monotonic() + 600
    while not (folder / ".milepost/run.json").exists():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def cost(folder: Path, *, watched: bool) -> Cost:
    """Run once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    monitor_cpu_s = bytes_per_s = 0.0
    with run(folder) as process:
        if watched:
            until_attachable(folder)
            terminal = Terminal()
            started_s = time.monotonic()
            monitor = subprocess.Popen(
                [MILEPOST, "monitor", str(folder)],
                stdin=terminal.theirs,
                stdout=terminal.theirs,
                stderr=terminal.theirs,
                env={**os.environ, "TERM": "xterm-256color"},
            )
            process.wait(timeout=600)
            seconds = time.monotonic() - started_s
            terminal.press("q")
            _, status, usage = os.wait4(monitor.pid, 0)
            monitor.returncode = os.waitstatus_to_exitcode(status)
            assert monitor.returncode == 0
            monitor_cpu_s = usage.ru_utime + usage.ru_stime
            terminal.close()
            bytes_per_s = terminal.num_bytes / seconds
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    summary = orjson.loads((folder / "summary.json").read_bytes())
    wall_s = float(summary["seconds"]["running"])
    recorder_s = sum(each["recorder"]["cpu_s"] for each in summary["statistics"].values())
    return Cost(wall_s, cpu_s - monitor_cpu_s, recorder_s, monitor_cpu_s, bytes_per_s)


@pytest.mark.timeout(1800)
def test_monitor_and_recorders_cost_the_quick_start_a_few_percent(tmp_path: Path) -> None:
    cost(tmp_path / "first", watched=False)  # makes the starting checkpoint, once
    alone, watched = [], []
    for number in range(PAIRS):
        alone.append(cost(tmp_path / f"alone-{number}", watched=False))
        watched.append(cost(tmp_path / f"watched-{number}", watched=True))
    wall = [median(each.wall_s for each in some) for some in (alone, watched)]
    cpu = [median(each.cpu_s for each in some) for some in (alone, watched)]
    recorder, monitor = (median(each.shares[place] for each in watched) for place in (0, 1))
    both = median(sum(each.shares) for each in watched)
    sent = median(each.bytes_per_s for each in watched)
    print(f"\n{'':<22}{'alone':>9}  {'watched':>9}  ratio")
    print(f"{'wall time':<22}{wall[0]:>7.2f} s  {wall[1]:>7.2f} s  {wall[1] / wall[0]:.3f}")
    print(f"{'processor of the run':<22}{cpu[0]:>7.2f} s  {cpu[1]:>7.2f} s  {cpu[1] / cpu[0]:.3f}")
    print(f"of the run's processor time: recorders {recorder:.2%}, monitor {monitor:.2%}")
    ratio = f"{1 + both:.4f}, wanted {1 + WANTED:.2f}"
    print(f"recorders on and a monitor attached, to neither: {ratio}")
    print(f"written to its terminal: {sent / 1024:.1f} KiB/s")
    assert both <= COST_MAX
    assert wall[1] / wall[0] <= 1 + WANTED
