"""`--watch`: the same picture again every second, from what the supervisor publishes.

Any number of watchers cost the run one message a second; a watcher that is slow skips some.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from milepost.launch.attach import Client, Run, Unreachable, find_run
from milepost.launch.exits import Exit

if TYPE_CHECKING:
    from milepost.messages.supervisor import Snapshot

SILENCE_S: Final = 5.0
"""Snapshots come once a second."""
EVERY_S: Final = 1.0
HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"


def add_watch_argument(parser: argparse.ArgumentParser) -> None:
    """--watch, for commands that show a snapshot."""
    parser.add_argument("--watch", action="store_true", help="show it again every second")


def watch(
    arguments: argparse.Namespace,
    lines: Callable[[Snapshot], Sequence[str]],
    facts: Callable[[Snapshot], Any],
) -> int:
    """Show every snapshot until the run ends or Ctrl-C; with --json, one object a line.

    Raises:
        Unreachable: no run, or nothing of it was ever heard.
    """
    try:
        return asyncio.run(_watch(arguments, lines, facts))
    except KeyboardInterrupt:
        return Exit.DONE


async def _watch(
    arguments: argparse.Namespace,
    lines: Callable[[Snapshot], Sequence[str]],
    facts: Callable[[Snapshot], Any],
) -> int:
    heard = False
    try:
        async with aclosing(snapshots(find_run(arguments.run))) as heard_ones:
            async for snapshot in heard_ones:
                heard = True
                if arguments.json:
                    print(msgspec.json.encode(facts(snapshot)).decode(), flush=True)
                else:
                    _paint(lines(snapshot))
    except Unreachable as error:
        if not heard:
            raise
        print(f"# {error}", file=sys.stderr)
    return Exit.DONE


async def snapshots(run: Run) -> AsyncGenerator[Snapshot, None]:
    """What the supervisor publishes, the newest each time.

    Raises:
        Unreachable: the run has ended, or its supervisor says nothing any more.
    """
    if not run.statistics:
        async for snapshot in _asked(run):
            yield snapshot
        return
    from milepost.messages.listener import Listener
    from milepost.messages.supervisor import Snapshot

    listener = Listener(run.statistics, run.run_id)
    try:
        while True:
            message = await listener.newest(SILENCE_S)
            if isinstance(message, Snapshot):
                yield message
            elif message is None:
                find_run(run.folder)  # says how it ended, if it has
                what = f"the supervisor (pid {run.pid}) has published nothing for {SILENCE_S:g} s"
                raise Unreachable(what)
    finally:
        await listener.close()


async def _asked(run: Run) -> AsyncGenerator[Snapshot, None]:
    """The same from another machine: statistics are published on this one only, so it asks."""
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    async with Client(run) as client:
        while True:
            yield await client.ask(SnapshotRequested(), Snapshot)
            await asyncio.sleep(EVERY_S)


def _paint(lines: Sequence[str]) -> None:
    if sys.stdout.isatty():
        print(HOME_AND_CLEAR + "\n".join(lines), flush=True)
    else:
        print("\n".join([*lines, ""]), flush=True)
