"""Which display fits a standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from milepost.configs.run import Mode
from milepost.configs.topology import Topology
from milepost.launch.display.plain import PlainDisplay
from milepost.launch.display.progress import Progress
from milepost.launch.display.threaded import ThreadedDisplay
from milepost.supervisor.display import Display


@contextmanager
def open_display(topology: Topology, *, plain: bool = False) -> Iterator[Display]:
    """The display for this run and this standard output.

    Args:
        topology: of the run to be shown.
        plain: one line a step, whatever standard output is.
    """
    success = topology.data.success_metric if topology.data else "solved"
    supervised = topology.algorithm.estimator == "sft"
    run = topology.run
    progress = Progress(
        run.name, run.steps, success, supervised=supervised, sync=run.mode is Mode.SYNC
    )
    shown = _plain(progress) if plain or not sys.stdout.isatty() else _screen(progress)
    try:
        yield shown
    finally:
        shown.close()


def _plain(progress: Progress) -> ThreadedDisplay:
    return ThreadedDisplay(PlainDisplay(progress, sys.stdout), at_end=sys.stdout.flush)


def _screen(progress: Progress) -> ThreadedDisplay:
    # rich takes a tenth of a second to import, and a pipe has no use for it.
    from rich.console import Console

    from milepost.launch.display.screen import Screen

    screen = Screen(progress, Console())
    screen.open()
    return ThreadedDisplay(screen, at_end=screen.close)
