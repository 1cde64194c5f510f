"""Shows a running job on one screen: actors, queues, contracts, versions, curves, waste.

RUN is the run's folder; it may be left out while exactly one run goes on under runs/. Nothing has
to be prepared: it attaches to any run of this user on this machine, at any time, shows all that
has happened so far, and stays when the run ends. It only reads: the run never waits for it.

In a pipe, or with --plain, a line every few seconds instead of a screen, until the run ends; with
--json one object, once. Keys: up, down and enter open what is chosen, ? explains the others.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from milepost.configs.problem import ConfigError, Problem
from milepost.launch.attach import Unreachable, attached, find_run, print_json
from milepost.launch.exits import Exit
from milepost.launch.options import possible_path
from milepost.supervisor.cleanup.unfinished import RUN_FILE

if TYPE_CHECKING:
    from milepost.launch.monitor.model import Model
    from milepost.launch.monitor.records import Records
    from milepost.launch.monitor.updates import Update

SCREEN_S: Final = 1.0
PLAIN_S: Final = 5.0
FIRST_S: Final = 2.5
"""How long the first line waits for a snapshot; they come once a second."""
EVERY_S_MIN: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RUN, --every, --plain and --json."""
    parser.add_argument(
        "folder", nargs="?", type=possible_path, metavar="RUN", help="the run's folder"
    )
    parser.add_argument(
        "--run", type=possible_path, default=None, metavar="RUN", help="the same, by name"
    )
    parser.add_argument(
        "--every",
        type=float,
        default=None,
        metavar="SECONDS",
        help=f"between two pictures, {SCREEN_S:g} on a screen and {PLAIN_S:g} in plain lines; "
        "more is less for a slow link to carry",
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a screen")
    parser.add_argument("--json", action="store_true", help="one object, once")


def run(arguments: argparse.Namespace) -> int:
    """Find the run, then show it in the way that fits what standard output is."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.folder is not None and arguments.run is not None:
        what = f"RUN is named twice: {arguments.folder} and {arguments.run}"
        raise ConfigError([Problem(what, "command line", "name it once")])
    if arguments.every is not None and not EVERY_S_MIN <= arguments.every < math.inf:
        what = f"--every = {arguments.every:g}, no seconds from {EVERY_S_MIN:g} on"
        raise ConfigError([Problem(what, "command line", f"set {EVERY_S_MIN:g} or more")])
    on_screen = not (arguments.json or arguments.plain) and _is_terminal()
    with _uncollected():
        folder, records, model = _open(arguments.folder or arguments.run)
        if on_screen:
            # Textual takes a quarter of a second to import; a pipe has no use for it.
            from milepost.launch.monitor.screen import show
    if on_screen:
        code = show(folder, records, model, arguments.every or SCREEN_S)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The system takes all memory back at once; Python would free it object by object first.
        os._exit(code)
    if arguments.json:
        return _print_once(folder, records, model)
    try:
        return asyncio.run(_print_lines(folder, records, model, arguments.every or PLAIN_S))
    except KeyboardInterrupt:
        return Exit.DONE


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is made meanwhile stays: the collector need not walk it again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _open(named: Path | None) -> tuple[Path, Records, Model]:
    """The folder that is meant; of a run that goes on, or of one that has ended.

    Raises:
        Unreachable: the folder holds no run.
    """
    from milepost.launch.monitor.model import Model
    from milepost.launch.monitor.records import Records

    folder = find_run(None).folder if named is None else named
    records = Records.of(folder)
    if not (folder / RUN_FILE).is_file():
        raise Unreachable(f"{folder} holds no run: it has no {RUN_FILE}")
    return folder, records, Model(records.about())


def _is_terminal() -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on the last one
    return all(each.isatty() for each in streams) and os.environ.get("TERM", "dumb") != "dumb"


def _print_once(folder: Path, records: Records, model: Model) -> int:
    from milepost.launch.monitor.facts import facts_of
    from milepost.launch.monitor.feed import look_once

    reason = asyncio.run(look_once(folder, records, model.take))
    print_json(facts_of(model))
    if reason:
        raise Unreachable(reason)
    return Exit.DONE


async def _print_lines(folder: Path, records: Records, model: Model, every_s: float) -> int:
    from milepost.launch.monitor.feed import Feed
    from milepost.launch.monitor.plain import PlainLines
    from milepost.launch.monitor.updates import Wanted

    lines, is_heard = PlainLines(model), asyncio.Event()

    def take(update: Update) -> None:
        model.take(update)
        if model.is_known:
            is_heard.set()

    feed = Feed(folder, records, take, Wanted, stay=False)
    following = asyncio.create_task(feed.run(), name="feed")
    first = asyncio.create_task(is_heard.wait(), name="first snapshot")
    await asyncio.wait({following, first}, timeout=FIRST_S, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    while not following.done():
        _print([*lines.news(), *lines.picture()])
        await asyncio.wait({following}, timeout=every_s)
    reason = following.result()
    _print([*lines.news(), *lines.ending()])
    if reason:
        raise Unreachable(reason)
    return Exit.DONE


def _print(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)
