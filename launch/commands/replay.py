"""Runs the recorded events of one actor through the same core again, and compares its decisions.

    milepost replay RUN --actor buffer --until step=12

Needs a full recording: `system.recorder.payloads = true` in the topology of the run. Of `trainer-0`
the recorded batches are trained again, too, from the last checkpoint at or before the last batch up
to the step that --until names, or from the initial weights, and their losses compared: bit for bit,
or to within --bound.

Exit code 0: all the same. 1: the first difference is shown. 2: refused, with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Final

from milepost.launch.exits import Exit
from milepost.launch.options import possible_path

CODES: Final = {0: Exit.DONE, 10: Exit.FAILED, 11: Exit.REFUSED}
"""What the replaying process ends with."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --actor, --until, --bound and --json."""
    parser.add_argument("run", type=possible_path, metavar="RUN", help="the run's folder")
    parser.add_argument("--actor", required=True, metavar="ACTOR", help="such as buffer")
    parser.add_argument(
        "--until", default="", metavar="step=N", help="or version=N, line=N; default: the end"
    )
    parser.add_argument(
        "--bound",
        type=float,
        default=0.0,
        metavar="X",
        help="relative difference of a step's figures that still counts as the same",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Replay in a process of its own: this one loads neither tokenizer nor torch."""
    module = "milepost.actors.recorder.replay"
    command = [sys.executable, "-P", "-m", module, str(arguments.run), arguments.actor]
    command += ["--until", arguments.until, "--bound", str(arguments.bound)]
    command += ["--json"] if arguments.json else []
    code = subprocess.run(command, check=False).returncode
    if code not in CODES:
        print(f"error: the replay itself ended with exit code {code}", file=sys.stderr)
    return CODES.get(code, Exit.REFUSED)
