"""Says what an actor waits for or does, since when and until when; of all actors without a name.

The words are the actor's own, as of its last heartbeat. Actors that are silent, late or dead come
first; then the trajectories that batches wait for longest, each with its agent, its turn, and since
when. Read-only.
"""

from __future__ import annotations

import argparse
import time
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
from milepost.launch.visible import visible_line
from milepost.launch.watching import add_watch_argument, watch

SILENT_S: Final = 3.0
"""Three heartbeats."""
TROUBLE: Final = frozenset(
    {"late", "stalled", "restarted", "failed", "refused", "not_taken", "guard", "killed"}
)
EVENTS_MAX: Final = 5
WAITS: Final = ("trainer", "buffer", "rollout")
"""Kinds of actors that wait for trajectories."""


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
        told = list(lines_of(snapshot.run, actors, snapshot.events))
        if (arguments.actor or WAITS[0]).startswith(WAITS):
            told += missing_lines(snapshot.actors, time.monotonic())
        return told

    def facts(snapshot: Snapshot) -> dict[str, Any]:
        keys = ("actor", "state", "state_s", "heard_s", "progress_s", "working_on")
        actors = chosen(snapshot.actors, arguments.actor)
        return {
            "run": snapshot.run,
            "actors": [{key: actor[key] for key in keys} for actor in actors],
            "missing": list(missing(snapshot.actors)),
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
        yield f"{mark} {actor['actor']} ({actor['state']}{_silence(actor)}): {visible_line(doing)}"
    for event in trouble(events):
        yield f"  {event['source']} {event['kind']}: {visible_line(event['text'])}"


def missing(actors: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Trajectories that batches wait for longest; `place` says their turn, where one is known."""
    places = {
        place["trajectory_id"]: place
        for actor in actors
        if actor["actor"].startswith("session-")
        for place in actor["statistics"].get("oldest", ())
    }
    for actor in actors:
        for member in actor["statistics"].get("oldest_missing", ()):
            yield {**member, "place": places.get(member["trajectory_id"])}


def missing_lines(actors: Sequence[Mapping[str, Any]], now_s: float) -> Iterator[str]:
    """The same as lines: each with its agent, its turn, and since when.

    Args:
        actors: of a snapshot.
        now_s: monotonic time of this machine, which is that of its actors.
    """
    for each in missing(actors):
        age = seconds(max(0.0, now_s - each["since_s"]))
        said = f"  missing {each['trajectory_id']}: {each['stage']} at {each['owner']} for {age}"
        yield said + _turn(each["place"], now_s)


def _turn(place: Mapping[str, Any] | None, now_s: float) -> str:
    if place is None:
        return ""
    age = seconds(max(0.0, now_s - place["since_s"]))
    words = {"agent": "its agent works", "delivery": "its row is being delivered"}
    doing = words.get(place["at"], f"{place['at']} on {place['engine'] or 'no engine yet'}")
    return f"; turn {place['turn']}: {doing} for {age}"


def trouble(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last events that explain a run that does not go well."""
    return [event for event in events if event["kind"] in TROUBLE][-EVENTS_MAX:]


def _silence(actor: Mapping[str, Any]) -> str:
    heard_s = actor["heard_s"]
    silent = heard_s is not None and heard_s > SILENT_S and actor["state"] != "stopped"
    return f", silent for {seconds(heard_s)}" if silent else ""


def _in_trouble(actor: Mapping[str, Any]) -> bool:
    return bool(_silence(actor)) or actor["state"] in {"failed", "doomed", "restarting"}
