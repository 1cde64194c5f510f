"""What the archive costs: processor time of a run with it and without, and how fast it writes.

Processor seconds of all processes of the lookup recipe, from the actors' own last words, in runs
taken in turns: the ratio of their sums is printed and bounded. Wall time is not looked at, so the
figures hold on a machine that does much else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from unit.archive.kit import author, came, judged, row, trained

from milepost.actors.archive.hand import ArchiveHand, Known, Order
from milepost.actors.archive.layout import key_of
from milepost.actors.archive.writer import ArchiveWriter, Said
from milepost.configs.run import ArchiveConfig
from milepost.messages.trajectory import Trajectory

STEPS = 20
ROUNDS = 2
RATIO_MAX = 1.02
TRAJECTORIES = 4000


def cpu_s_per_step(folder: Path, *, enabled: bool) -> dict[str, float]:
    """Processor seconds of buffer, sessions and trainer, and of all actors together, for a step."""
    words = [f"run.steps={STEPS}", f"archive.enabled={str(enabled).lower()}"]
    command = [str(Path(sys.executable).with_name("milepost")), "run", "lookup", "--plain"]
    sets = [part for word in (*words, "actors.evaluator.prompts_max=1") for part in ("--set", word)]
    subprocess.run([*command, *sets, "--out", str(folder)], check=True, timeout=900)
    statistics = json.loads((folder / "summary.json").read_text())["statistics"]
    used = {name: float(said["cpu_s"]) for name, said in statistics.items()}
    return {"all": sum(used.values()) / STEPS, **{name: s / STEPS for name, s in used.items()}}


@pytest.mark.timeout(3600)
def test_the_archive_takes_under_two_percent_of_a_run(tmp_path: Path) -> None:
    sums: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for number in range(ROUNDS):
        for enabled in (False, True):
            used = cpu_s_per_step(tmp_path / f"{enabled}-{number}", enabled=enabled)
            for name, seconds in used.items():
                sums[enabled][name] = sums[enabled].get(name, 0.0) + seconds / ROUNDS
    print(f"\n{'':<14}{'without':>10}{'with':>10}  processor ms a step")
    for name in ("buffer", "session-0", "trainer-0", "all"):
        without, along = sums[False][name], sums[True][name]
        print(f"{name:<14}{1000 * without:>10.1f}{1000 * along:>10.1f}  {along / without:.3f}")
    assert sums[True]["all"] / sums[False]["all"] <= RATIO_MAX


def test_records_are_written_faster_than_any_run_makes_them(tmp_path: Path) -> None:
    """Through the thread, index and all: trajectories with their conversations, and verdicts."""
    rows = [row(f"g{number // 8:06d}.{number % 8}", turns=30) for number in range(TRAJECTORIES)]
    hand = ArchiveHand(author(tmp_path), ArchiveConfig(), keeps_index=True)
    started = time.process_time()
    for each in rows:
        hand.put(Order(partial(_said, row=each), 4000, (each.trajectory_id,)))
    hand.close(600.0)
    _show("buffer, with index", 2 * TRAJECTORIES, hand.state.num_bytes, started)
    writer = ArchiveWriter(author(tmp_path, "trainer-0"))
    started = time.process_time()
    for each in rows:
        writer.write([trained(each, 0)])
    _show("trainer", TRAJECTORIES, writer.num_bytes, started)
    writer.close()


def _said(known: Known, row: Trajectory) -> list[Said]:
    assert known.is_new(key_of(row))
    return [came(row), judged(row)]


def _show(name: str, count: int, num_bytes: int, started: float) -> None:
    seconds = time.process_time() - started
    rate = num_bytes / seconds / (1 << 20)
    print(f"\n{name}: {count / seconds:,.0f} records/s, {rate:.1f} MB/s of processor time")
