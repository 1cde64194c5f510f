"""Shows every actor of a running job: state, process, last word, what it does.

    actor     process name
    state     new, greeted, ready, running, draining, drained, stopping, restarting, failed
    pid       of its process
    for       time in this state
    heard     since it last said anything
    again     how often it was restarted
    memory    resident, MiB
    cpu       share of one core
    loop p99  how late its event loop runs, milliseconds
    doing     what it works on or waits for, in its own words

Below the table: ports that actors opened for others than the run, and where they are reached.

With --watch again every second. Read-only; it may come, go and crash without the run noticing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from milepost.launch.attach import add_run_arguments, ask_once, attached, find_run, print_json
from milepost.launch.exits import Exit
from milepost.launch.tables import LEFT, RIGHT, seconds, table
from milepost.launch.watching import add_watch_argument, watch

if TYPE_CHECKING:
    from milepost.messages.supervisor import Snapshot

COLUMNS = (
    ("actor", LEFT),
    ("state", LEFT),
    ("pid", RIGHT),
    ("for", RIGHT),
    ("heard", RIGHT),
    ("again", RIGHT),
    ("memory", RIGHT),
    ("cpu", RIGHT),
    ("loop p99", RIGHT),
    ("doing", LEFT),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--watch, --run and --json."""
    add_watch_argument(parser)
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask for a snapshot and print it."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    if arguments.watch:
        return watch(arguments, lambda one: lines_of(one.run, one.actors), facts_of)
    snapshot = ask_once(find_run(arguments.run), SnapshotRequested(), Snapshot)
    if arguments.json:
        print_json(facts_of(snapshot))
        return Exit.DONE
    for line in lines_of(snapshot.run, snapshot.actors):
        print(line)
    return Exit.DONE


def facts_of(snapshot: Snapshot) -> dict[str, Any]:
    """What --json prints."""
    return {"run": snapshot.run, "actors": snapshot.actors}


def lines_of(run_facts: Mapping[str, Any], actors: Sequence[Mapping[str, Any]]) -> list[str]:
    """The run in one line, then a table of its actors."""
    head = (
        f"{run_facts['name']}  {run_facts['phase']} for {seconds(run_facts['phase_s'])}"
        f"  step {run_facts['step']} of {run_facts['steps']}  {run_facts['folder']}"
    )
    rows = [_row(actor) for actor in (*actors, _supervisor(run_facts))]
    doors = [
        f"{actor['actor']} listens at {' and '.join(actor['ports'])}"
        for actor in actors
        if actor["ports"]
    ]
    return [head, "", *table(COLUMNS, rows), *([""] if doors else []), *doors]


def _supervisor(run_facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "actor": "supervisor",
        "state": run_facts["phase"],
        "pid": run_facts["pid"],
        "state_s": run_facts["phase_s"],
        "heard_s": 0.0,
        "restarts": 0,
        "finished": False,
        "working_on": run_facts["waiting"],
        "statistics": run_facts["statistics"],
    }


def _row(actor: Mapping[str, Any]) -> tuple[str, ...]:
    figures = actor["statistics"]
    loop_ms = figures.get("bus", {}).get("loop", {}).get("p99_ms")
    return (
        actor["actor"],
        actor["state"] + (" *" if actor["finished"] else ""),
        str(actor["pid"] or "-"),
        seconds(actor["state_s"]),
        seconds(actor["heard_s"]),
        str(actor["restarts"]),
        _number(figures.get("rss_mib"), "{:.0f}"),
        _number(figures.get("cpu_share"), "{:.2f}"),
        _number(loop_ms, "{:.1f}"),
        actor["working_on"],
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
