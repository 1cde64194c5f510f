"""Shows every queue of a running job: how full, how old, how fast, and whether it blocks.

    queue     `A -> B` is what A has sent to B and B has not taken; `inbox of A` is what has
              arrived at A, of all senders
    depth     messages in it now
    max       messages it may hold: the link's window, the inbox's limit
    peak      largest depth so far (of a link: of messages that waited for room in the window)
    oldest    age of the oldest message in it; of a link, of the oldest question without answer
    in/s      messages that went in, over the time between two looks
    out/s     messages that were taken
    state     ok; BLOCKED n: n messages or senders wait for room; BROKEN: there is no connection;
              then what was repeated, lost and asked for again, or given up, since the start

Only queues that were ever used are shown. Takes two looks, --interval seconds apart; with --watch
again every second. Read-only.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable

from milepost.launch.attach import Client, add_run_arguments, attached, find_run, print_json
from milepost.launch.exits import Exit
from milepost.launch.options import seconds_above_0
from milepost.launch.queues import Queue, Since, between, queues_of, with_rates, with_supervisor
from milepost.launch.tables import LEFT, RIGHT, seconds, table
from milepost.launch.watching import add_watch_argument, watch
from milepost.messages.supervisor import Snapshot, SnapshotRequested

COLUMNS = (
    ("queue", LEFT),
    ("depth", RIGHT),
    ("max", RIGHT),
    ("peak", RIGHT),
    ("oldest", RIGHT),
    ("in/s", RIGHT),
    ("out/s", RIGHT),
    ("state", LEFT),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--interval, --run and --json."""
    parser.add_argument(
        "--interval", type=seconds_above_0, default=2.0, help="seconds between the looks"
    )
    add_watch_argument(parser)
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask for two snapshots and print the difference."""
    if arguments.watch:
        since = Since()
        return attached(
            lambda: watch(
                arguments,
                lambda one: lines_of(since.queues(one)),
                lambda one: {"queues": since.queues(one)},
            )
        )
    return attached(lambda: asyncio.run(_run(arguments)))


async def _run(arguments: argparse.Namespace) -> int:
    async with Client(find_run(arguments.run)) as client:
        first = await client.ask(SnapshotRequested(), Snapshot)
        await asyncio.sleep(arguments.interval)
        second = await client.ask(SnapshotRequested(), Snapshot)
    before, after = with_supervisor(first), with_supervisor(second)
    queues = with_rates(queues_of(before), queues_of(after), between(before, after))
    if arguments.json:
        print_json({"queues": queues})
        return Exit.DONE
    for line in lines_of(queues):
        print(line)
    return Exit.DONE


def lines_of(queues: Iterable[Queue]) -> list[str]:
    """The table; blocked and broken queues first, then the fullest."""
    ordered = sorted(
        queues, key=lambda queue: (queue.state.startswith("ok"), -queue.depth, queue.name)
    )
    rows = [
        (
            queue.name,
            str(queue.depth),
            str(queue.max),
            str(queue.peak),
            seconds(queue.oldest_s),
            f"{queue.in_per_s:.1f}",
            f"{queue.out_per_s:.1f}",
            queue.state,
        )
        for queue in ordered
    ]
    return table(COLUMNS, rows)
