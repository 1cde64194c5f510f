"""The life of one trajectory through all actors, in the order of cause and effect.

Clocks of hosts differ, so times do not order lines of two actors: a line comes after the earlier
lines of its actor, and what receives a message comes after what sent it. Times only choose among
lines that neither causes the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import msgspec

from milepost.actors.recorder.lines import Decision, Line, names_in
from milepost.actors.recorder.reading import Recording, starts_of


@dataclass(frozen=True, slots=True)
class Moment:
    """One line that speaks of what is traced.

    Attributes:
        recording: which has it.
        line: the line, with those decisions only that belong here.
    """

    recording: Recording
    line: Line

    @property
    def host(self) -> str:
        """Whose clock its time is of."""
        return str(self.recording.about.get("host", ""))


def group_of(trajectory: str) -> str:
    """`g3` for its member `g3.1`; empty for a group."""
    return trajectory.rpartition(".")[0]


def about(lines: Iterable[Line], trajectory: str) -> Iterator[Line]:
    """Lines of one actor that speak of this trajectory, or of its group as a whole.

    An answer without names in it belongs to its question. Decisions about others are left out.

    Args:
        lines: in order.
        trajectory: its id; the id of a group stands for all its members.
    """
    asked: set[int] = set()
    for line in lines:
        told = [each for each in line.decisions if _speaks(each, trajectory)]
        direct = _speaks(line, trajectory) or line.cause in asked
        if not told and not direct:
            continue
        asked.update(each.message_id for each in told if each.message_id)
        if direct:
            told = [
                each
                for each in line.decisions
                if not any(names_in(each.facts)) or _speaks(each, trajectory)
            ]
        yield msgspec.structs.replace(line, decisions=told)


def moments(recordings: Iterable[Recording], trajectory: str) -> list[Moment]:
    """The same over all actors, causes first."""
    return in_order(
        [Moment(one, line) for one in recordings for line in about(one.lines, trajectory)]
    )


def in_order(found: Collection[Moment]) -> list[Moment]:
    """Causes first, start after start; what does not cause each other by its time."""
    starts = starts_of(one.recording for one in found)
    apart: list[list[Moment]] = [[] for _ in starts]
    for one in found:
        apart[starts[one.recording.run_id]].append(one)
    return [one for each in apart for one in _in_order(each)]


def _in_order(every: Sequence[Moment]) -> list[Moment]:
    """The same within one start."""
    sender = {
        each.message_id: index
        for index, one in enumerate(every)
        for each in one.line.decisions
        if each.message_id
    }
    after: list[list[int]] = [[] for _ in every]
    waits = [0] * len(every)
    last: dict[str, int] = {}
    for index, one in sorted(enumerate(every), key=_place):
        actor = one.recording.actor
        causes = {last.get(actor), sender.get(one.line.message_id)} - {None, index}
        last[actor] = index
        for cause in causes:
            assert cause is not None
            after[cause].append(index)
            waits[index] += 1
    ready = [(every[index].line.wall_s, index) for index, count in enumerate(waits) if not count]
    heapify(ready)
    ordered: list[Moment] = []
    while ready:
        _, index = heappop(ready)
        ordered.append(every[index])
        for follower in after[index]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(ready, (every[follower].line.wall_s, follower))
    assert len(ordered) == len(every), "a message that causes its own cause"
    return ordered


def _place(numbered: tuple[int, Moment]) -> tuple[int, int]:
    """Where the line stands among those of its actor; one process is gone before the next is."""
    _, one = numbered
    return one.recording.about["incarnation"], one.line.number


def behind_s(ordered: Iterable[Moment]) -> dict[tuple[str, str], float]:
    """(host, other host) -> by how much the first one's clock is behind, at least."""
    sent: dict[int, Moment] = {}
    found: dict[tuple[str, str], float] = {}
    for one in ordered:
        cause = sent.get(one.line.message_id)
        if cause is None or cause.host == one.host:
            pass  # one clock: what looks like a difference is the time between deciding and writing
        elif cause.line.wall_s > one.line.wall_s:
            pair = (one.host, cause.host)
            found[pair] = max(found.get(pair, 0.0), cause.line.wall_s - one.line.wall_s)
        sent.update((each.message_id, one) for each in one.line.decisions if each.message_id)
    return found


def _speaks(told: Line | Decision, trajectory: str) -> bool:
    names = {*names_in(told.facts), *told.key.split("/")}
    inner = (f"{trajectory}.", f"{trajectory}/")
    if any(name == trajectory or name.startswith(inner) for name in names):
        return True
    group = group_of(trajectory)
    return (
        bool(group) and group in names and not any(name.startswith(f"{group}.") for name in names)
    )
