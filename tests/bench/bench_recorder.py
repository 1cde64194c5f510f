"""What the flight recorder costs: its share of the processor time of the lookup recipe.

Prints, for each actor, the processor time that its lines took (measured inside of the process,
around every bunch of them, and around letting the first calls of each wait, for which the others
count as well) over all that the process used; then processor seconds per step of the same run
without and with it. The first figure is exact to a few per cent of itself; the second one carries
the noise of two runs, and is there to show that nothing was forgotten in the first.
`bench_monitor` prints the ratio of a run with recorders and a monitor to one with neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

STEPS: Final = 4
TARGET: Final = 0.013
BOUND: Final = 0.05
"""Of a busy machine, where a line costs three to four times what it costs from warm caches."""
RUN_S: Final = 600.0


def run(folder: Path, *settings: str) -> dict[str, dict[str, Any]]:
    """The last statistics of every actor of one run."""
    words = [f"run.steps={STEPS}", *settings]
    command = [str(Path(sys.executable).with_name("milepost")), "run", "lookup", "--plain"]
    command += ["--out", str(folder), *(part for word in words for part in ("--set", word))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    statistics: dict[str, dict[str, Any]] = json.loads(
        (folder / "summary.json").read_text(encoding="utf-8")
    )["statistics"]
    return statistics


def total_s(statistics: dict[str, dict[str, Any]]) -> float:
    """Processor seconds of all actors."""
    return sum(float(one["cpu_s"]) for one in statistics.values())


@pytest.mark.timeout(1500)
def test_the_recorder_takes_a_few_per_cent_of_a_run(tmp_path: Path) -> None:
    on = run(tmp_path / "on")
    off = run(tmp_path / "off", "system.recorder.enabled=false")
    whole = run(tmp_path / "whole", "system.recorder.payloads=true")
    for kind, statistics in (("ring", on), ("ring and contents", whole)):
        print(f"\n{kind}:")
        for actor, one in statistics.items():
            recorder = one["recorder"]
            spent_s, lines = recorder["cpu_s"], recorder["lines"]
            each_us = 1e6 * spent_s / max(1, lines)
            share = spent_s / one["cpu_s"]
            print(f"  {actor:<10} {lines:6} lines  {each_us:5.1f} us each  {share:6.2%}")
        spent_s = sum(one["recorder"]["cpu_s"] for one in statistics.values())
        print(f"  together   {spent_s:.2f} of {total_s(statistics):.1f} s: ", end="")
        print(f"{spent_s / total_s(statistics):.2%}, wanted {TARGET:.0%}")
    per_step = {name: total_s(each) / STEPS for name, each in (("on", on), ("off", off))}
    print(
        f"\nprocessor seconds a step: off {per_step['off']:.2f}, on {per_step['on']:.2f}, ", end=""
    )
    print(f"ratio {per_step['on'] / per_step['off']:.3f} (two runs: noise of several per cent)")
    spent_s = sum(one["recorder"]["cpu_s"] for one in on.values())
    assert spent_s / total_s(on) < BOUND
