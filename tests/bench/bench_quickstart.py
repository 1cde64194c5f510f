"""The quick start against a plain loop that does the same steps on the same machine.

The plain loop (`bench.sequential`) is one process: batched generation by hand, the same model,
tokenizer, tasks, warm-up and settings, the same number of optimizer steps. What the bus, the eight
processes and the certificates cost, and what overlapping generation with training gains, is the
ratio of the two wall times.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bench.sequential.loop import SUCCESS, WINDOW, Loop, one_thread
from bench.sequential.tasks import Task

from milepost.configs.load import load_topology
from milepost.launch.cache import cached_folder
from milepost.launch.report.record import Record, read_record

RATIO_MAX = 1.3
RECIPES = ("lookup", "lookup_sync")


def run(recipe: str, folder: Path) -> Record:
    """One whole run as a user starts it; the warm-up is made first when it is not kept yet."""
    command = [str(Path(sys.executable).with_name("milepost")), "run", recipe]
    subprocess.run([*command, "--plain", "--out", str(folder)], check=True, timeout=600)
    return read_record(folder)


def step_s(record: Record) -> float:
    """Mean wall seconds of a step, from the evaluation before to the last step."""
    curve = record.curve(record.success_name)
    return curve[-1][1] / curve[-1][0]


def success_s(record: Record) -> float | None:
    """Wall seconds of training until the mean success of five batches passed 0.9."""
    curve = record.curve(record.success_name)
    for end in range(WINDOW, len(curve) + 1):
        window = curve[end - WINDOW : end]
        if sum(value for _, _, value in window) / WINDOW >= SUCCESS:
            return window[-1][1]
    return None


def shown(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:5.1f} s"


@pytest.mark.timeout(1200)
def test_reinforcement_takes_no_longer_than_in_a_plain_loop(tmp_path: Path) -> None:
    records = {recipe: run(recipe, tmp_path / recipe) for recipe in RECIPES}
    one_thread()
    torch.manual_seed(0)
    loop = Loop(
        Task("lookup"), cached_folder("lookup_warmup", load_topology("lookup_warmup")), seed=0
    )
    rival = loop.reinforce()
    print(f"\n{'':<14}{'a step':>9}  {'to 0.9':>8}  ratio to the plain loop")
    print(f"{'plain loop':<14}{rival.wall_s_per_step:>7.3f} s  {shown(rival.wall_s_to_success)}")
    ratios = {}
    for recipe, record in records.items():
        ratios[recipe] = step_s(record) / rival.wall_s_per_step
        times = f"{step_s(record):>7.3f} s  {shown(success_s(record))}"
        print(f"{recipe:<14}{times}  {ratios[recipe]:.2f}")
    assert ratios["lookup"] <= RATIO_MAX
