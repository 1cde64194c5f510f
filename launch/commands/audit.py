"""Checks every trajectory that a run archived once more, off line, and lists what fails.

Prefix hashes over token ids, masks, version spans, tokenizer and seals of each row, as the door of
the trainer did; checksums, lengths and the chain of all records; and whether what the buffer, the
trainer and the index say of a row agrees. Exit code 0 when all is well, 1 when something fails, 2
when there is no archive, 3 when it cannot be read. Changes nothing of the run, and may be
asked while it goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from milepost.launch.options import possible_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN and --json."""
    parser.add_argument("run", type=possible_path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, all faults in it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Audit in a process of its own: this one loads no arrays."""
    words = [str(arguments.run), *(["--json"] if arguments.json else [])]
    command = [sys.executable, "-P", "-m", "milepost.actors.archive", *words]
    return subprocess.run(command, check=False).returncode
