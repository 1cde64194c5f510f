"""The queue of complete groups, the batches cut from it, and the credits that keep it bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from milepost.actors.buffer.cuts import Cut
from milepost.actors.buffer.groups import Assembly, StoredGroup, oldest_of
from milepost.actors.buffer.marks import Handed
from milepost.actors.buffer.metrics import batch_metrics, queue_metrics, version_metrics
from milepost.actors.buffer.sampled import sampling_metrics
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.split import split_batch
from milepost.actors.buffer.waste import Waste
from milepost.actors.effects import Effect, Reply, Request
from milepost.messages.buffer import Batch, BatchExhausted, BatchRequested
from milepost.messages.supervisor import Refused

CUTS_KEPT = 2


@dataclass(frozen=True, slots=True)
class _Parked:
    message: BatchRequested
    request: Request
    since_s: float


@dataclass(slots=True)
class Batches:
    """See the module. `next_version` is the version that the next batch trains on top of."""

    settings: BufferSettings
    next_version: int
    queue: dict[str, StoredGroup] = field(default_factory=dict)
    """Complete groups, in the order they became so."""
    published: int | None = None
    ended: str = ""
    """Why no further group will come."""
    draining: bool = False
    """They will come when the run goes on."""
    _cuts: dict[int, Cut] = field(default_factory=dict)
    _parked: dict[int, _Parked] = field(default_factory=dict)
    _next_step: int | None = None

    # ---- what is here --------------------------------------------------------------------

    def untrained(self) -> list[Cut]:
        """Batches handed out and not trained yet, in order."""
        return [cut for cut in self._cuts.values() if not cut.is_trained]

    def was_handed(self, name: str) -> bool:
        """True when the group is in a batch that is still remembered."""
        return any(name in cut.groups for cut in self._cuts.values())

    def holds(self, name: str) -> bool:
        """True when the group is complete here, in the queue or in a batch."""
        return name in self.queue or self.was_handed(name)

    @property
    def is_waited_for(self) -> bool:
        """True when a rank waits for a batch that is not cut, or was reopened."""
        return any(
            (cut := self._cuts.get(item.message.step)) is None or cut.is_reopened
            for item in self._parked.values()
        )

    @property
    def num_lacking(self) -> int:
        """Groups that are to take the place of refused ones, over all batches."""
        return sum(map(self._lacks, self.untrained()))

    def _lacks(self, cut: Cut) -> int:
        """Groups that are to take the place of refused ones."""
        return 0 if cut.is_trained else self.settings.groups_per_step - len(cut.groups)

    # ---- credits -------------------------------------------------------------------------

    def credit_groups(self, num_spent: int) -> int:
        """Groups that may have been issued since the run began, dropped ones not counted.

        What left the queue into batches or has to replace what the door refused of them, plus the
        room there is now: at most `groups_max`, what the remaining steps need (and as many more as
        are to be over-sampled), and, when paced, what can be consumed within the bound. Versions
        are absolute, so a resume at a high version changes nothing.
        """
        settings = self.settings
        batches = self._batches_allowed()
        extra = settings.over_sampled if settings.sync or settings.pace is None else 0
        wanted = settings.groups_per_step * batches + (extra if batches else 0)
        room = min(settings.groups_max, wanted)
        handed = sum(len(cut.groups) + self._lacks(cut) for cut in self.untrained())
        return num_spent + handed + room

    def _batches_allowed(self) -> int:
        """Batches that may be cut before the next version is published, if that is a bound."""
        batches = self.settings.steps - self.next_version
        if self.settings.pace is not None:
            batches = min(batches, self._first_too_late(self.settings.pace) - self.next_version)
        return max(0, batches)

    @property
    def is_closed(self) -> bool:
        """True when nothing that is sampled now can be in any batch, or must not be.

        That is after the last step; and, with whole groups dropped in the synchronous mode, from
        the cut of a batch until the next version is published.
        """
        if self.num_lacking:
            return False
        if self.next_version >= self.settings.steps:
            return True
        drops = self.settings.over_sampled and self.settings.sync
        if not drops or self.settings.partial or self.published is None:
            return False
        return not self._batches_allowed()

    def _first_too_late(self, pace: int) -> int:
        """Version of the first batch that is trained when too new a version is published.

        With a publication every n batches, version m * n is published before the batch on top of it
        is trained. The first one beyond `published + pace` is the next multiple of n.
        """
        if self.published is None:
            return 0
        every = self.settings.publish_every
        return ((self.published + pace) // every + 1) * every

    def age(self, group: StoredGroup) -> int | None:
        """S_old of the group now; None when nobody knows it."""
        if group.versions is None or self.published is None:
            return None
        return group.versions.s_old(self.published)

    # ---- ages ----------------------------------------------------------------------------

    def take_late(self) -> list[tuple[StoredGroup, str]]:
        """Remove groups beyond the staleness limit, each with the reason."""
        limit = self.settings.staleness_max
        if limit is None or self.published is None:
            return []
        drops = self.settings.late != "correct"
        late: list[tuple[StoredGroup, str]] = []
        for groups in (self.queue, *(cut.groups for cut in self.untrained() if cut.is_reopened)):
            for name, group in list(groups.items()):
                versions = group.versions
                if versions is None or versions.num_unversioned:
                    late.append((groups.pop(name), "unknown_age"))
                elif drops and versions.s_old(self.published) > limit:
                    late.append((groups.pop(name), "stale"))
        return late

    def end(self, reason: str, *, draining: bool) -> None:
        """No further group will come; data that ended before a drain has ended all the same."""
        self.draining = draining and (self.draining or not self.ended)
        self.ended = self.ended or reason

    # ---- requests ------------------------------------------------------------------------

    def requested(self, message: BatchRequested, request: Request, now_s: float) -> None:
        """A rank wants its part; `answer` replies when the batch exists."""
        self._parked[message.rank] = _Parked(message, request, now_s)

    def cut(self, waste: Waste) -> Cut | None:
        """Cut the batch that a rank waits for, if enough groups are here.

        A batch that the door refused a part of comes first: it is filled up, and comes out of here
        again when it is whole.
        """
        for short in filter(self._lacks, self.untrained()):
            return self._fill_up(short)
        settings = self.settings
        size = settings.groups_per_step
        waiting = [
            item.message for item in self._parked.values() if item.message.step not in self._cuts
        ]
        if not waiting or len(self.queue) < size:
            return None
        first = min(waiting, key=lambda message: (message.step, message.rank))
        if self._next_step is not None and first.step != self._next_step:
            return None
        groups = {name: self.queue.pop(name) for name in self._choose(size)}
        metrics = self._metrics(list(groups.values()))
        cut = Cut(
            step=first.step,
            version=max(self.next_version, first.version),
            groups=groups,
            world_size=first.world_size,
            ranks=split_batch(list(groups.values()), settings.num_minibatches, first.world_size),
            metrics=metrics | waste.take_metrics(),
            published=self.published,
            is_written=not settings.journal,
        )
        self._remember(cut)
        return cut

    def _fill_up(self, cut: Cut) -> Cut | None:
        for name in self._choose(self._lacks(cut)):
            cut.groups[name] = self.queue.pop(name)
        if self._lacks(cut):
            return None
        groups = list(cut.groups.values())
        # The parts of the ranks hold what was refused: they are split anew.
        cut.world_size, cut.ranks = 0, ()
        cut.metrics |= self._metrics(groups)
        cut.published = self.published
        cut.is_written = not self.settings.journal
        return cut

    def _choose(self, size: int) -> list[str]:
        """First come first served; when paced, the oldest version first: it is due first."""
        names = list(self.queue)
        if self.settings.pace is not None:
            names.sort(key=self._due)
        return names[:size]

    def _due(self, name: str) -> int:
        versions = self.queue[name].versions
        return versions.oldest if versions else -1

    def _metrics(self, groups: Sequence[StoredGroup]) -> dict[str, float]:
        metrics = batch_metrics(groups, self.settings.success_metric)
        if not self.settings.imports:
            settings = self.settings
            metrics |= sampling_metrics(groups, settings.history, settings.num_engines)
            metrics |= version_metrics(groups, self.published)
            metrics |= queue_metrics(groups, list(self.queue.values()), self.published)
        return metrics

    def _remember(self, cut: Cut) -> None:
        self._cuts[cut.step] = cut
        self._next_step = cut.step + 1
        self.next_version = cut.version + 1
        trained = [step for step, old in self._cuts.items() if old.is_trained]
        for step in trained[:-CUTS_KEPT]:
            del self._cuts[step]

    def recover(self, handed: Handed, groups: Sequence[StoredGroup]) -> None:
        """A batch that a former incarnation handed out and that is not trained yet."""
        self._remember(
            Cut(
                step=handed.step,
                version=handed.version,
                groups={group.group_id: group for group in groups},
                world_size=0,
                ranks=(),
                metrics=batch_metrics(groups, self.settings.success_metric) if groups else {},
                # It was whole when it was handed out: the door has refused what is not here.
                is_reopened=len(groups) < self.settings.groups_per_step,
            )
        )

    def written(self, key: str) -> None:
        """The journal knows of a batch, by the `Cut.write_key` of its time: ranks may have it."""
        _, step, _ = key.split("/")
        cut = self._cuts.get(int(step))
        # What was filled up once more meanwhile waits for the word that says so.
        if cut is not None and key == cut.write_key:
            cut.is_written = True

    def answer(self, now_s: float) -> list[Effect]:
        """Replies to every rank whose batch exists, or never will."""
        replies: list[Effect] = []
        for rank, parked in list(self._parked.items()):
            message = parked.message
            cut = self._cuts.get(message.step)
            reply: Batch | BatchExhausted | Refused
            if cut is not None and not self._lacks(cut):
                if not cut.is_written:
                    continue
                cut.is_reopened = False
                reply = self._part(cut, message, now_s - parked.since_s)
            elif reason := self._out_of_step(message):
                reply = Refused(reason=reason)
            elif reason := self._never(message):
                reply = BatchExhausted(reason=reason, draining=self.draining)
            else:
                continue
            del self._parked[rank]
            replies.append(Reply(parked.request, reply))
        return replies

    def _out_of_step(self, message: BatchRequested) -> str:
        """Why nobody may ask for this batch: a fault, and no end of the data."""
        if message.step in self._cuts or self._next_step in (None, message.step):
            return ""
        return (
            f"rank {message.rank} asks for the batch of step {message.step}, "
            f"the next one is {self._next_step}"
        )

    def _never(self, message: BatchRequested) -> str:
        # A batch that is cut already lacks a group, and none will come.
        short = message.step in self._cuts or len(self.queue) < self.settings.groups_per_step
        return self.ended if short else ""

    def _part(self, cut: Cut, message: BatchRequested, wait_s: float) -> Batch:
        if cut.world_size != message.world_size:
            groups = list(cut.groups.values())
            cut.ranks = split_batch(groups, self.settings.num_minibatches, message.world_size)
            cut.world_size = message.world_size
        everything = [piece for rank in cut.ranks for piece in rank]
        mine = cut.ranks[message.rank]
        minibatches = range(self.settings.num_minibatches)
        return Batch(
            step=cut.step,
            trajectories=tuple(piece.trajectory for piece in mine),
            group_ids=cut.group_ids,
            num_trajectories=sum(piece.trajectory.row == 0 for piece in everything),
            num_loss_tokens=sum(piece.loss_tokens for piece in everything),
            minibatch_of=tuple(piece.minibatch for piece in mine),
            minibatch_loss_tokens=tuple(
                sum(piece.loss_tokens for piece in everything if piece.minibatch == index)
                for index in minibatches
            ),
            minibatch_trajectories=tuple(
                sum(piece.minibatch == index and piece.trajectory.row == 0 for piece in everything)
                for index in minibatches
            ),
            metrics=cut.metrics,
            wait_s=wait_s,
        )

    # ---- after training ------------------------------------------------------------------

    def trained(self, step: int, names: Iterable[str]) -> int:
        """The batch of `step` is spent. Returns its tokens with loss, the first time."""
        groups = [self.queue.pop(name) for name in names if name in self.queue]
        # A former incarnation may have handed it out: no rank gets other groups for it from us.
        self._next_step = max(self._next_step or 0, step + 1)
        if (cut := self._cuts.get(step)) and not cut.is_trained:
            cut.is_trained = True
            groups += cut.groups.values()
        return sum(group.num_loss_tokens for group in groups)

    @property
    def num_tokens_held(self) -> int:
        """Tokens with loss in the queue and in batches that are not trained yet."""
        held = [*self.queue.values(), *(g for cut in self.untrained() for g in cut.groups.values())]
        return sum(group.num_loss_tokens for group in held)

    def refuse(self, step: int, name: str) -> StoredGroup | None:
        """The trainer's door refused a group of this batch; another one will take its place."""
        cut = self._cuts.get(step)
        if cut is None or name not in cut.groups:
            return None
        cut.is_reopened = True
        return cut.groups.pop(name)

    def validate(self) -> None:
        """Assert that no group is in two places."""
        seen = list(self.queue)
        for cut in self._cuts.values():
            seen += cut.groups
        assert len(seen) == len(set(seen)), "BU-2 (once)"

    def statistics(self) -> dict[str, object]:
        """The queue, the batches, the versions."""
        ages = [age for group in self.queue.values() if (age := self.age(group)) is not None]
        return {
            "queue": len(self.queue),
            "queue_max": self.settings.groups_max,
            "queue_s_old_max": max(ages, default=0),
            "handed": len(self.untrained()),
            "next_version": self.next_version,
            "published": self.published,
            "ranks_waiting": sorted(self._parked),
        }

    def working_on(self, assembling: Iterable[Assembly]) -> str:
        """What the next batch waits for, in names."""
        if not self._parked:
            return f"holds {len(self.queue)} groups, no rank asks"
        since_s = min(item.since_s for item in self._parked.values())
        missing = self.settings.groups_per_step - len(self.queue)
        ranks = ", ".join(f"trainer-{rank}" for rank in sorted(self._parked))
        said = f"{ranks} wait since {since_s:.1f} for {missing} more groups"
        return f"{said}; {oldest_of(assembling)}"
