"""Say what would not work, and start nothing.

Every check of the first stage is tried and all their problems are shown; the next stages look at
files, at this machine and at your own code, and are tried when the stage before has no problem.
With --resume RUN it says whether the run in that folder could go on; TOPOLOGY may then be left
out. Exit code 0 when all hold, 2 when one does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from milepost.configs.problem import ConfigError
from milepost.launch.cache import with_cached
from milepost.launch.checking import as_json, last_line, lines_of, unread
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.launch.topologies import add_topology_arguments, topology_of
from milepost.supervisor.checks import CHECKS, Checked, Machine, Subject, run_checks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this command."""
    add_topology_arguments(parser)
    parser.add_argument(
        "--resume", metavar="RUN", type=possible_path, help="as if the run there were to go on"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Check the topology and print a line for each check."""
    results: list[Checked] = []
    try:
        topology = topology_of(arguments)
    except ConfigError as error:
        results += unread(error.problems)
    else:
        resume: Path | None = arguments.resume
        machine = Machine.look(resume or Path())
        subject = Subject(with_cached(topology), machine, resume, resuming=resume is not None)
        for checked in run_checks(CHECKS, subject):
            results.append(checked)
            if not arguments.json:
                print("\n".join(lines_of(checked)), flush=True)
    if arguments.json:
        print(as_json(results))
    else:
        if results[-1].skipped and results[0].problems:
            print("\n".join(lines_of(results[0])))
        print(last_line(results))
    return Exit.REFUSED if any(checked.problems for checked in results) else Exit.DONE
