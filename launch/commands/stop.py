"""Ends a running job: every actor finishes or hands over, the trainer saves, then all stop.

With --at-once every process is killed without a chance to save. Waits until nothing of the run
is left unless --no-wait is given. The exit code says whether the run has ended, not how: that is
in RUN/summary.json.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Final

from milepost.launch.attach import (
    Run,
    Unreachable,
    add_run_arguments,
    ask_once,
    attached,
    find_run,
    print_json,
)
from milepost.launch.exits import Exit
from milepost.supervisor.cleanup.registry import read_registry

POLL_S: Final = 0.1
SILENCE_S: Final = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--at-once, --reason, --no-wait, --run and --json."""
    parser.add_argument("--at-once", action="store_true", help="kill everything, save nothing")
    parser.add_argument("--reason", default="milepost stop", help="written into summary.json")
    parser.add_argument("--no-wait", action="store_true", help="return when the order is taken")
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Order the end and wait for it."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import StopAccepted, StopRun

    target = find_run(arguments.run)
    order = StopRun(reason=arguments.reason, at_once=arguments.at_once)
    phase = ask_once(target, order, StopAccepted).phase
    if not arguments.no_wait:
        _wait(target)
        phase = "ended"
    if arguments.json:
        print_json({"run": str(target.folder), "phase": phase})
    else:
        print(f"{target.folder} is {phase}")
    return Exit.DONE


def _wait(target: Run) -> None:
    # Bounded by the run's own deadlines: the supervisor kills what does not end by them.
    if not target.pid:
        _wait_from_afar(target)
        return
    supervisor = read_registry(target.folder).supervisor
    while supervisor is not None and supervisor.alive:
        time.sleep(POLL_S)


def _wait_from_afar(target: Run) -> None:
    """On another machine, the end is that nobody answers any more."""
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    with contextlib.suppress(Unreachable):
        while True:
            ask_once(target, SnapshotRequested(), Snapshot, SILENCE_S)
            time.sleep(POLL_S)
