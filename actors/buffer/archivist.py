"""Watches the buffer's core and has the archive written: what came, and what was decided of it.

The core knows nothing of it. What comes in is seen in the messages, verdicts in what the core says
to the rollout actor and to its journal, and ends without a word in the accounts of its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from milepost.actors.archive.layout import Judged, Verdict, arrived, key_of
from milepost.actors.archive.orders import Order
from milepost.actors.archive.query import LOST_AT_RESUME, UNTRAINED
from milepost.actors.buffer.marks import Gone
from milepost.actors.buffer.work import WriteMarks
from milepost.actors.effects import Effect, Event, Received, Tell
from milepost.messages.buffer import TrajectoriesFinished, TrajectoryFinished
from milepost.messages.rollout import GroupDropped, GroupsStored, GroupStored, GroupsTrained
from milepost.messages.supervisor import EventReported

if TYPE_CHECKING:
    from milepost.actors.archive.hand import ArchiveHand
    from milepost.actors.archive.orders import Known
    from milepost.actors.archive.writer import Said
    from milepost.actors.buffer.core import Buffer
    from milepost.actors.buffer.groups import StoredGroup
    from milepost.messages.trajectory import Trajectory

    Rows: TypeAlias = tuple[Trajectory, ...]

STORED: Final = Verdict.STORED
LATE: Final = "late_duplicate"
LOST: Final = "died with the buffer"
ORDER_BYTES: Final = 512
"""What an order keeps in memory besides arrays, roughly."""


@dataclass(slots=True)
class ArchivedBuffer:
    """The core of a buffer whose trajectories and verdicts are archived. A `Core` itself."""

    core: Buffer
    hand: ArchiveHand
    resumed_from: int | None = None
    """The run goes on from this step, and this is its first buffer since: what was trained in that
    step or later is to be trained again, or lost."""
    _alive: dict[str, list[str]] = field(default_factory=dict)
    """Group -> keys of its trajectories that may still be trained."""
    _brought: set[str] = field(default_factory=set)
    """Groups of those that the journal brought back."""
    _ended: list[tuple[str, Sequence[Trajectory]]] = field(default_factory=list)
    """Account and rows of what ended while the core handled one event."""
    _told_missed: int = 0

    def __post_init__(self) -> None:
        """Hear of every end."""
        self.core.waste.heard = self._ended

    # ---- the core ------------------------------------------------------------------------

    def start(self, now_s: float) -> list[Effect]:
        """What the journal brought back was stored; what it did not bring back is lost."""
        cuts = (cut.groups.values() for cut in self.core.batches.untrained())
        groups = [*chain.from_iterable(cuts), *self.core.batches.queue.values()]
        for group in groups:
            self._alive[group.group_id] = [key_of(row) for row in group.members]
        for group in groups:
            # Its arrays cost nothing more: the core holds them until they are trained.
            make = partial(stored_before, group=group, since=self.resumed_from)
            self._brought.add(group.group_id)
            self.hand.put(Order(make, ORDER_BYTES * len(group.trajectories), (group.group_id,)))
        keys = frozenset(key for own in self._alive.values() for key in own)
        make = partial(lost_before, kept=keys, since=self.resumed_from)
        self.hand.put(Order(make, ORDER_BYTES, ()))
        return self.core.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door of the core."""
        members: list[Rows] = []
        if isinstance(event, Received):
            event, members = without_conversations(event)
        effects = self.core.handle(event, now_s)
        if isinstance(event, Received):
            self._came(members, event.source)
        reasons = dict(_reasons(effects))
        for account, rows in self._ended:
            if account != LATE:
                self._dropped(account, rows, reasons)
        self._ended.clear()
        for name in _stored(effects):
            self._judge_stored(name)
        for name in _trained(effects):
            keys = self._alive.pop(name, ())
            if name in self._brought and keys:
                # It may have been untrained, and is not any more.
                self._brought.discard(name)
                self._judge(Judged(group_id=name, keys=tuple(keys), verdict=STORED))
        return effects + self._news()

    def validate(self) -> None:
        """Assert the core's."""
        self.core.validate()

    def statistics(self) -> dict[str, object]:
        """The core's, and how far the archive is."""
        return {**self.core.statistics(), "archive": self.hand.told()}

    def working_on(self) -> str:
        """The core's."""
        return self.core.working_on()

    # ---- what is written -----------------------------------------------------------------

    def _came(self, members: Sequence[Rows], source: str) -> None:
        late = {
            row.trajectory_id for account, rows in self._ended if account == LATE for row in rows
        }
        for rows in members:
            first = rows[0]
            is_late = first.trajectory_id in late
            if not is_late:
                self._alive.setdefault(first.group_id, []).append(key_of(first))
            make = partial(came, rows=rows, source=source, is_late=is_late)
            self.hand.put(Order(make, _num_bytes(rows), (first.trajectory_id,)))

    def _judge_stored(self, name: str) -> None:
        group = self._find(name)
        keys = self._alive.get(name)
        if keys:
            rewards = group.rewards if group else ()
            self._judge(
                Judged(group_id=name, keys=tuple(keys), verdict=STORED, group_rewards=rewards)
            )

    def _dropped(
        self, account: str, rows: Sequence[Trajectory], reasons: Mapping[str, str]
    ) -> None:
        keys: dict[str, list[str]] = {}
        for row in rows:
            if row.row == 0:
                keys.setdefault(row.group_id, []).append(key_of(row))
        for name, own in keys.items():
            detail = reasons.get(name, "")
            reason = account if not detail or account.endswith(detail) else f"{account}: {detail}"
            self._judge(
                Judged(group_id=name, keys=tuple(own), verdict=Verdict.DROPPED, reason=reason)
            )
            self._alive.pop(name, None)

    def _judge(self, head: Judged) -> None:
        self.hand.put(Order(lambda _: [(head, None)], ORDER_BYTES, (head.group_id,)))

    def _find(self, name: str) -> StoredGroup | None:
        batches = self.core.batches
        cuts = (cut.groups.get(name) for cut in batches.untrained())
        return batches.queue.get(name) or next(filter(None, cuts), None)

    def _news(self) -> list[Effect]:
        """Somebody should know that records are missed: at the first, then ever more rarely."""
        state = self.hand.state
        if state.missed <= 2 * self._told_missed:
            return []
        self._told_missed = state.missed
        text = f"{state.missed} records of the archive were not written, the last: {state.reason}"
        return [Tell("supervisor", EventReported(source="buffer", kind="not_archived", text=text))]


def came(known: Known, *, rows: Rows, source: str, is_late: bool) -> Iterator[Said]:
    """What is written of a trajectory that came; late ones are of groups that need them no more."""
    key, name = key_of(rows[0]), rows[0].group_id
    if known.is_new(key):
        yield arrived(rows, source)
        if is_late:
            yield Judged(group_id=name, keys=(key,), verdict=Verdict.DROPPED, reason=LATE), None
    elif not is_late:
        # Delivered once more after our former incarnation died with it.
        yield Judged(group_id=name, keys=(key,), verdict=Verdict.WAITING), None


def stored_before(known: Known, *, group: StoredGroup, since: int | None = None) -> Iterator[Said]:
    """What is written of a group that a former buffer had stored.

    Those of it that had not been archived any more are archived now, without conversations.
    """
    own = tuple(key_of(row) for row in group.members)
    for member in group.members:
        rows = [row for row in group.trajectories if row.trajectory_id == member.trajectory_id]
        if known.is_new(key_of(member)):
            yield arrived(rows, str(member.metadata.get("session", "")))
    is_untrained = any(known.is_untrained(key, since) for key in own)
    yield (
        Judged(
            group_id=group.group_id,
            keys=own,
            verdict=STORED,
            reason=UNTRAINED if is_untrained else "",
            group_rewards=group.rewards,
        ),
        None,
    )


def lost_before(known: Known, *, kept: Collection[str], since: int | None = None) -> Iterator[Said]:
    """What a former buffer had, without a last word, and this one has not.

    With `since`, what was trained in that step or later, too: other trajectories take its place.
    """
    trained = [] if since is None else known.trained_since(since)
    for reason, found in ((LOST, known.waiting()), (LOST_AT_RESUME, trained)):
        lost: dict[str, list[str]] = {}
        for name, key in found:
            if key not in kept:
                lost.setdefault(name, []).append(key)
        for name, each in lost.items():
            own = tuple(each)
            yield Judged(group_id=name, keys=own, verdict=Verdict.DROPPED, reason=reason), None


def without_conversations(event: Received) -> tuple[Received, list[Rows]]:
    """The event as the core gets it, and the trajectories that it brings, as they came."""
    match event.message:
        case TrajectoryFinished() as message:
            rows = (message.trajectory, *message.others)
            bare = tuple(map(_bare, rows))
            one = msgspec.structs.replace(message, trajectory=bare[0], others=bare[1:])
            return msgspec.structs.replace(event, message=one), [rows]
        case TrajectoriesFinished() as message:
            bare = tuple(map(_bare, message.trajectories))
            many = msgspec.structs.replace(message, trajectories=bare)
            return msgspec.structs.replace(event, message=many), [
                (row,) for row in message.trajectories
            ]
        case _:
            return event, []


def _bare(row: Trajectory) -> Trajectory:
    return row if row.conversation is None else msgspec.structs.replace(row, conversation=None)


def _num_bytes(rows: Sequence[Trajectory]) -> int:
    arrays = (
        (row.token_ids, row.loss_mask, row.logprobs, row.provenance, row.routes, row.conversation)
        for row in rows
    )
    return ORDER_BYTES + sum(each.nbytes for row in arrays for each in row if each is not None)


def _reasons(effects: Iterable[Effect]) -> Iterator[tuple[str, str]]:
    for effect in effects:
        match effect:
            case WriteMarks(_, marks):
                yield from ((mark.group, mark.reason) for mark in marks if isinstance(mark, Gone))
            case Tell(_, GroupDropped(group_id=name, reason=reason)):
                yield name, reason
            case _:
                pass


def _stored(effects: Iterable[Effect]) -> Iterator[str]:
    for effect in effects:
        match effect:
            case Tell(_, GroupStored(group_id=name)):
                yield name
            case Tell(_, GroupsStored(group_ids=names)):
                yield from names
            case _:
                pass


def _trained(effects: Iterable[Effect]) -> Iterator[str]:
    for effect in effects:
        match effect:
            case Tell(_, GroupsTrained(group_ids=names)):
                yield from names
            case _:
                pass
