"""Says what an actor waits for or does, since when and until when; of all actors without a name.

The words are the actor's own, as of its last heartbeat. Actors that are silent, late or dead come
first. Read-only.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from milepost.launch.attach import (
    NotServed,
    add_run_arguments,
    ask_once,
    attached,
    find_run,
    print_json,
)
from milepost.launch.exits import Exit
from milepost.launch.tables import seconds
from milepost.launch.watching import add_watch_argument, watch

SILENT_S: Final = 3.0
"""Three heartbeats."""
TROUBLE: Final = frozenset(
    {"late", "stalled", "restarted", "failed", "refused", "not_taken", "guard", "killed"}
)
EVENTS_MAX: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[ACTOR], --watch, --run and --json."""
    parser.add_argument("actor", nargs="?", metavar="ACTOR", help="process name, such as engine-0")
    add_watch_argument(parser)
    add_run_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask for a snapshot and print what explains it."""
    return attached(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from milepost.messages.supervisor import Snapshot, SnapshotRequested

    def lines(snapshot: Snapshot) -> list[str]:
        actors = chosen(snapshot.actors, arguments.actor)
        return list(lines_of(snapshot.run, actors, snapshot.events))

    def facts(snapshot: Snapshot) -> dict[str, Any]:
        keys = ("actor", "state", "state_s", "heard_s", "progress_s", "working_on")
        actors = chosen(snapshot.actors, arguments.actor)
        return {
            "run": snapshot.run,
            "actors": [{key: actor[key] for key in keys} for actor in actors],
            "trouble": trouble(snapshot.events),
        }

    if arguments.watch:
        return watch(arguments, lines, facts)
    snapshot = ask_once(find_run(arguments.run), SnapshotRequested(), Snapshot)
    if arguments.json:
        print_json(facts(snapshot))
    else:
        print("\n".join(lines(snapshot)))
    return Exit.DONE


def chosen(actors: Sequence[dict[str, Any]], name: str | None) -> list[dict[str, Any]]:
    """The actor of this name, or all of them, those in trouble first.

    Raises:
        NotServed: no such actor.
    """
    if name is None:
        return sorted(actors, key=lambda actor: not _in_trouble(actor))
    found = [actor for actor in actors if actor["actor"] == name]
    if not found:
        known = ", ".join(actor["actor"] for actor in actors)
        raise NotServed(f"no actor {name!r}, there are: {known}")
    return found


def lines_of(
    run_facts: Mapping[str, Any],
    actors: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Phase, what every actor waits for, and the last troubles."""
    yield f"{run_facts['name']} is {run_facts['phase']} for {seconds(run_facts['phase_s'])}"
    if run_facts["waiting"]:
        yield run_facts["waiting"]
    for actor in actors:
        mark = "!" if _in_trouble(actor) else " "
        doing = actor["working_on"] or "says nothing"
        yield f"{mark} {actor['actor']} ({actor['state']}{_silence(actor)}): {doing}"
    for event in trouble(events):
        yield f"  {event['source']} {event['kind']}: {event['text']}"


def trouble(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last events that explain a run that does not go well."""
    return [event for event in events if event["kind"] in TROUBLE][-EVENTS_MAX:]


def _silence(actor: Mapping[str, Any]) -> str:
    heard_s = actor["heard_s"]
    silent = heard_s is not None and heard_s > SILENT_S and actor["state"] != "stopped"
    return f", silent for {seconds(heard_s)}" if silent else ""


def _in_trouble(actor: Mapping[str, Any]) -> bool:
    return bool(_silence(actor)) or actor["state"] in {"failed", "doomed", "restarting"}
