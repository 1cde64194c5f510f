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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from milepost.launch.attach import Client, add_run_arguments, attached, find_run, print_json
from milepost.launch.exits import Exit
from milepost.launch.options import seconds_above_0
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


class Queue(Struct, frozen=True):
    """One line."""

    name: str
    depth: int
    max: int
    peak: int
    oldest_s: float
    num_in: int
    num_out: int
    state: str
    in_per_s: float = 0.0
    out_per_s: float = 0.0


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


class Since:
    """Rates since each actor's heartbeat before the one that is shown."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        self._shown: dict[str, Queue] = {}

    def queues(self, snapshot: Snapshot) -> list[Queue]:
        """The queues at this look; an actor that has not beaten since the last is shown as then."""
        actors = with_supervisor(snapshot)
        spent_s = between(list(self._before.values()), actors)
        fresh = [actor for actor in actors if spent_s[actor["actor"]] != 0]
        found = with_rates(queues_of(self._before.values()), queues_of(fresh), spent_s)
        self._before |= {actor["actor"]: actor for actor in fresh}
        self._shown |= {queue.name: queue for queue in found}
        return [self._shown[name] for name in queues_of(actors) if name in self._shown]


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


def with_supervisor(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Every actor, and the supervisor as one more."""
    own = {"actor": "supervisor", "statistics": snapshot.run["statistics"]}
    return [*snapshot.actors, own]


def queues_of(actors: Iterable[Mapping[str, Any]]) -> dict[str, Queue]:
    """Every queue that was ever used, by name, as of the actors' last heartbeats."""
    found = (
        queue
        for actor in actors
        if "bus" in actor["statistics"]
        for queue in _queues(actor["actor"], actor["statistics"]["bus"])
    )
    return {queue.name: queue for queue in found if queue.num_in or queue.depth}


def _queues(actor: str, bus: Mapping[str, Any]) -> Iterator[Queue]:
    box = bus["mailbox"]
    yield Queue(
        name=f"inbox of {actor}",
        depth=box["depth"],
        max=box["max"],
        peak=box["peak"],
        oldest_s=box["oldest_age_s"],
        num_in=box["received"],
        num_out=box["handled"],
        state=_state(
            box["blocked_senders"],
            "",
            repeated=box["duplicates"],
            gaps=box["gaps"],
            given_up=box["skipped"] + box["refused"],
            strangers=box["strangers"],
        ),
    )
    for link in bus["links"]:
        depth = link["depth"] + link["unacked"]
        yield Queue(
            name=f"{actor} -> {link['peer']}",
            depth=depth,
            max=link["window"],
            peak=link["peak"],
            oldest_s=link["oldest_age_s"],
            num_in=link["sent"],
            num_out=link["sent"] - link["unacked"],
            state=_state(
                link["depth"],
                link["problem"],
                repeated=link["retries"],
                gaps=0,
                given_up=link["failed"],
            ),
        )


def _state(
    blocked: int, problem: str, *, repeated: int, gaps: int, given_up: int, strangers: int = 0
) -> str:
    words = ["ok"]
    if blocked:
        words = [f"BLOCKED {blocked}"]
    if problem:
        words = [f"BROKEN: {problem}"]
    counted = (
        (repeated, "repeated"),
        (gaps, "gaps"),
        (given_up, "given up"),
        (strangers, "strangers refused"),
    )
    for count, what in counted:
        if count:
            words.append(f"{count} {what}")
    return ", ".join(words)


def between(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Seconds between the heartbeats of each actor that two snapshots show."""
    before = {each["actor"]: each["statistics"].get("uptime_s", 0.0) for each in first}
    return {
        each["actor"]: each["statistics"].get("uptime_s", 0.0) - before.get(each["actor"], 0.0)
        for each in second
    }


def with_rates(
    before: Mapping[str, Queue], after: Mapping[str, Queue], elapsed_s: Mapping[str, float]
) -> list[Queue]:
    """The later queues with messages a second.

    A queue that was not there before, or whose counters went back since its actor began again,
    has no rate yet.
    """
    queues = []
    for name, queue in after.items():
        old = before.get(name)
        spent_s = elapsed_s.get(_owner(name), 0.0)
        if old is None or spent_s <= 0 or queue.num_in < old.num_in:
            queues.append(queue)
            continue
        queues.append(
            structs.replace(
                queue,
                in_per_s=(queue.num_in - old.num_in) / spent_s,
                out_per_s=max(0, queue.num_out - old.num_out) / spent_s,
            )
        )
    return queues


def _owner(name: str) -> str:
    return name.removeprefix("inbox of ").partition(" -> ")[0]


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
