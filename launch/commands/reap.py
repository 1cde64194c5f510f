"""Takes away what a killed run left: processes, ports, sockets, shared memory, sandboxes.

A run cleans up after itself, also when its supervisor is killed; this is for when the cleaner was
killed, too. Every process is identified by its number and its start time, so that no other
process is ever hit. Refuses (exit 2) while the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from milepost.launch.attach import print_json
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.supervisor.cleanup.reaper import Reaped, StillRunning, reap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN and --json."""
    parser.add_argument("run_folder", type=possible_path, metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Reap and say what was found."""
    try:
        reaped = reap(arguments.run_folder)
    except FileNotFoundError:
        print(f"error: {arguments.run_folder} is no run folder", file=sys.stderr)
        return Exit.REFUSED
    except StillRunning as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.REFUSED
    if arguments.json:
        print_json(asdict(reaped))
    else:
        for line in lines_of(reaped):
            print(line)
    return Exit.FAILED if reaped.problems else Exit.DONE


def lines_of(reaped: Reaped) -> list[str]:
    """One line for each kind of thing taken away, then the problems."""
    kinds: dict[str, Sequence[int | str]] = {
        "killed processes": reaped.processes,
        "closed ports": reaped.ports,
        "removed socket folders": reaped.folders,
        "removed shared memory": reaped.segments,
        "released": reaped.commands,
        "removed half-written folders": reaped.halves,
    }
    lines = [f"{what}: {', '.join(map(str, found))}" for what, found in kinds.items() if found]
    lines += [f"problem: {problem}" for problem in reaped.problems]
    return lines or ["nothing was left"]
