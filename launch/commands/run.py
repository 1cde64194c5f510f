"""Check a topology, start its actors, watch them, and report how it went.

TOPOLOGY is a recipe's name or a TOML file. With --resume RUN the run in that folder goes on from
its last checkpoint; TOPOLOGY may then be left out, and is the one that the run was started with.
A starting checkpoint that a recipe makes is made first and kept under ~/.cache/milepost (or
$MILEPOST_CACHE). Ctrl-C once drains and saves, twice stops at once.

Exit code 0 when the work was done, 1 when it was not, 2 when nothing was started.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.launch.topologies import add_topology_arguments, topology_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    add_topology_arguments(parser)
    add_run_arguments(parser)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the run is written and how it is shown."""
    parser.add_argument(
        "--out",
        metavar="RUN",
        type=possible_path,
        help="the run's folder (default: runs/NAME-TIME)",
    )
    parser.add_argument(
        "--resume", metavar="RUN", type=possible_path, help="go on with the run in this folder"
    )
    parser.add_argument("--plain", action="store_true", help="one line a step, no live display")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON at the end")


def run(arguments: argparse.Namespace) -> int:
    """Run the topology to its end."""
    # The supervisor and its bus; nobody who asks for --help should wait for them.
    from milepost.launch.running import Options, new_folder, report, run_topology

    resume: Path | None = arguments.resume
    if resume is not None and arguments.out is not None:
        raise ConfigError([Problem("both --out and --resume", "command line", "give one of them")])
    topology = topology_of(arguments)
    folder = resume or arguments.out or new_folder(topology.run.name)
    options = Options(out=folder, resume=resume, plain=arguments.plain, json=arguments.json)
    code = run_topology(topology, options)
    # A folder that was refused may hold an earlier run.
    if code is not Exit.REFUSED:
        report(folder, options)
    return code
