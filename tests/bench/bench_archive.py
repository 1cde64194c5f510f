"""What the archive costs: processor time of a step with it and without, and how fast it writes.

Processor seconds of all actors of the lookup recipe, by their own last words. A short run is taken
off a long one, so that what is left is steps alone: no imports, no evaluations. Wall time is not
looked at, so the ratio holds on a machine that does much else.
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

from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.layout import key_of
from milepost.actors.archive.orders import Known, Order
from milepost.actors.archive.writer import ArchiveWriter, Said
from milepost.configs.run import ArchiveConfig
from milepost.messages.trajectory import Trajectory

SHORT, LONG = 4, 44
RATIO_MAX = 1.02
TRAJECTORIES = 4000


def cpu_s(folder: Path, steps: int, *, enabled: bool) -> dict[str, float]:
    """Processor seconds of each actor of one run."""
    settings = (
        f"run.steps={steps}",
        f"archive.enabled={str(enabled).lower()}",
        "actors.evaluator.prompts_max=1",
    )
    command = [str(Path(sys.executable).with_name("milepost")), "run", "lookup", "--plain"]
    words = [word for each in settings for word in ("--set", each)]
    subprocess.run([*command, *words, "--out", str(folder)], check=True, timeout=900)
    statistics = json.loads((folder / "summary.json").read_text())["statistics"]
    return {name: float(said["cpu_s"]) for name, said in statistics.items()}


@pytest.mark.timeout(3600)
def test_the_archive_takes_under_two_percent_of_a_step(tmp_path: Path) -> None:
    step: dict[bool, dict[str, float]] = {}
    for enabled in (False, True):
        short, long = (
            cpu_s(tmp_path / f"{enabled}-{steps}", steps, enabled=enabled)
            for steps in (SHORT, LONG)
        )
        step[enabled] = {name: (long[name] - short[name]) / (LONG - SHORT) for name in long}
        step[enabled]["all actors"] = sum(step[enabled].values())
    print(f"\n{'':<14}{'without':>10}{'with':>10}  processor ms a step")
    for name, without in step[False].items():
        along = step[True][name]
        print(f"{name:<14}{1000 * without:>10.1f}{1000 * along:>10.1f}")
    ratio = step[True]["all actors"] / step[False]["all actors"]
    print(f"ratio {ratio:.3f}")
    assert ratio <= RATIO_MAX


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
