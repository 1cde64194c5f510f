"""Every queue of a run, as snapshots tell of them: how full, how old, how fast, who is blocked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

if TYPE_CHECKING:
    from milepost.messages.supervisor import Snapshot


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
            failed_inside=bus["failed_inside"],
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
    blocked: int,
    problem: str,
    *,
    repeated: int,
    gaps: int,
    given_up: int,
    strangers: int = 0,
    failed_inside: int = 0,
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
        (failed_inside, "failed inside"),
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
