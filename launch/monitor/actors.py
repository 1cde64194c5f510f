"""What a snapshot tells of each actor, in the figures that the tables show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from milepost.messages.supervisor import Snapshot


class Tight(Struct, frozen=True):
    """The link of an actor that has the least room left."""

    peer: str
    free: int
    """Messages that may still be sent before one is taken: the credit."""
    window: int


class ActorRow(Struct, frozen=True, kw_only=True):
    """One actor as of its last heartbeat."""

    name: str
    kind: str
    state: str
    state_s: float
    pid: int | None
    heard_s: float | None
    restarts: int
    finished: bool
    doing: str
    depth: int | None
    """Messages in its mailbox; None before the first heartbeat."""
    depth_max: int
    blocked: int
    """Senders whose whole window lies in its mailbox."""
    tight: Tight | None
    oldest_s: float | None
    """Age of the oldest thing that waits: in its mailbox, on its links, or for an answer."""
    loop_ms: float | None
    rss_mib: float | None
    cpu: float | None
    facts: dict[str, Any]
    statistics: dict[str, Any]
    """The actor's own numbers, without those of the bus."""


def rows_of(snapshot: Snapshot) -> Iterator[ActorRow]:
    """Every actor, and the supervisor as the last."""
    for actor in snapshot.actors:
        yield _row(actor)
    run = snapshot.run
    yield _row(
        {
            "actor": "supervisor",
            "kind": "supervisor",
            "state": run.get("phase", ""),
            "state_s": run.get("phase_s", 0.0),
            "pid": run.get("pid"),
            "heard_s": 0.0,
            "working_on": run.get("waiting", "") or "watches the others",
            "statistics": run.get("statistics", {}),
        }
    )


def rows_of_ended(
    statistics: Mapping[str, Mapping[str, Any]], seen: Iterable[ActorRow]
) -> Iterator[ActorRow]:
    """The actors of a run that has ended: what they counted in the end.

    Args:
        statistics: of the summary, by name; those of the bus are not in it.
        seen: the rows of the last snapshot; none when the monitor came too late for one.
    """
    before = {row.name: row for row in seen}
    for name in [*before, *(name for name in statistics if name not in before)]:
        kind, _, index = name.rpartition("-")
        told = dict(statistics.get(name, {}))
        facts = {"actor": name, "kind": kind if index.isdecimal() else name, "statistics": told}
        row = before.get(name) or _row(facts)
        yield replace(row, state="ended", doing="", statistics=told or row.statistics)


def _row(actor: Mapping[str, Any]) -> ActorRow:
    statistics = dict(actor.get("statistics", {}))
    bus = statistics.pop("bus", None) or {}
    box, links = bus.get("mailbox", {}), bus.get("links", ())
    ages = [float(each["oldest_age_s"]) for each in (box, *links) if "oldest_age_s" in each]
    return ActorRow(
        name=str(actor["actor"]),
        kind=str(actor.get("kind", "")),
        state=str(actor.get("state", "")),
        state_s=float(actor.get("state_s", 0.0)),
        pid=actor.get("pid"),
        heard_s=actor.get("heard_s"),
        restarts=int(actor.get("restarts", 0)),
        finished=bool(actor.get("finished", False)),
        doing=str(actor.get("working_on", "")),
        depth=box.get("depth"),
        depth_max=int(box.get("max", 0)),
        blocked=int(box.get("blocked_senders", 0)),
        tight=_tight(links),
        oldest_s=max(ages, default=None),
        loop_ms=bus.get("loop", {}).get("p99_ms"),
        rss_mib=statistics.get("rss_mib"),
        cpu=statistics.get("cpu_share"),
        facts=dict(actor.get("facts", {})),
        statistics=statistics,
    )


def _tight(links: Any) -> Tight | None:
    found = [
        Tight(str(link["peer"]), int(link["window"]) - int(link["unacked"]), int(link["window"]))
        for link in links
        if link.get("window")
    ]
    return min(found, key=lambda link: (link.free / link.window, link.peer), default=None)
