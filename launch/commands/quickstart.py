"""Train a tool-using agent on this machine, and show what it learned.

Runs the recipe (after its warm-up, which is made once and kept) into runs/quickstart-TIME or --out,
then writes curve.png and report.html there and prints a table of held-out success before and after.
Ctrl-C once drains and saves, twice stops at once.

Exit code 0 when the run was done, 1 when it was not, 2 when nothing was started.
"""

from __future__ import annotations

import argparse

from milepost.configs.load import load_topology
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.launch.running import Options, new_folder, report, run_topology

RECIPES = ("lookup", "hunt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    parser.add_argument(
        "--recipe", choices=RECIPES, default=RECIPES[0], help="directory look-up or treasure hunt"
    )
    parser.add_argument("--seed", type=int, default=0, help="of questions, episodes and sampling")
    parser.add_argument(
        "--out",
        metavar="RUN",
        type=possible_path,
        help="the run's folder (default: runs/quickstart-TIME)",
    )
    parser.add_argument("--plain", action="store_true", help="one line a step, no live display")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON at the end")


def run(arguments: argparse.Namespace) -> int:
    """Run, then report whatever there is to report, also of a run that was stopped."""
    topology = load_topology(arguments.recipe, [f"run.seed={arguments.seed}"])
    folder = arguments.out or new_folder("quickstart")
    options = Options(out=folder, plain=arguments.plain, json=arguments.json)
    code = run_topology(topology, options)
    # A folder that was refused may hold an earlier run.
    if code is not Exit.REFUSED:
        report(folder, options)
    return code
