"""The buffer: complete groups between the sessions that finish them and the ranks that train them.

Owns: groups being assembled, complete groups, batches handed out and not trained yet.
Receives: groups opened, resized, abandoned; trajectories; batch requests; what was trained.
Sends: credits and fates of groups to the rollout actor, batches to trainer ranks.
Invariants:
    BU-1 (capacity): complete groups never exceed `groups_max`, besides those that take the place
        of what the door refused; credits see to it, so nothing that was sampled waits for room.
    BU-2 (once): a group is in at most one batch; a member delivered twice counts once.
    BU-3 (write ahead): what others are told about a group is in the journal before.
    BU-4 (age): with a limit, no group older than it is handed out (policy `late` apart).
Starts: by telling the rollout actor what it holds.
Dies: when its journal cannot be written, or a filter of the user's fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from milepost.actors.buffer.batches import Batches
from milepost.actors.buffer.courier import Courier
from milepost.actors.buffer.credits import Credits
from milepost.actors.buffer.filters import Sieve
from milepost.actors.buffer.groups import Assembling, Assembly, StoredGroup
from milepost.actors.buffer.judging import JUDGE, Judge
from milepost.actors.buffer.marks import Covered, Fates, Gone, Handed, Mark, Spent
from milepost.actors.buffer.waste import Waste
from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.buffer.writing import Writing
from milepost.actors.effects import (
    Answered,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Request,
    Taken,
    Tell,
    Unanswered,
    Woken,
    WorkDone,
)
from milepost.messages.buffer import (
    BatchRequested,
    CheckpointSaved,
    GroupAbandoned,
    GroupOpened,
    GroupResized,
    GroupsRefused,
    IssueEnded,
    StepTrained,
    TokensAccounted,
    TrajectoriesFinished,
    TrajectoryFinished,
)
from milepost.messages.rollout import (
    GroupsStored,
    GroupStored,
    GroupsTrained,
    StoreRecovered,
)
from milepost.messages.supervisor import Drain, Drained, PeerRestarted
from milepost.messages.trainer import VersionPublished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.buffer.settings import BufferSettings
    from milepost.messages.shared import Message
    from milepost.messages.trajectory import Trajectory


@dataclass(slots=True)
class Buffer:
    """See the module."""

    settings: BufferSettings
    fates: Fates
    batches: Batches
    waste: Waste = field(default_factory=Waste)
    assembling: Assembling = field(default_factory=Assembling)
    storing: dict[str, StoredGroup] = field(default_factory=dict)
    """Complete, with the filters or on their way into the journal."""
    courier: Courier = field(init=False)
    judge: Judge = field(init=False)
    writing: Writing = field(init=False)
    credits: Credits = field(init=False)
    _draining: Request | None = None

    def __post_init__(self) -> None:
        """Whoever carries words to the rollout actor asks us what the state is."""
        self.courier = Courier(self._recovered)
        sieve = Sieve(self.settings.filters, self.settings.filtered_in_a_row_max)
        self.judge = Judge(sieve, self.waste)
        self.writing = Writing(self.settings.journal)
        self.credits = Credits(self.batches, self.settings.group_size)

    @classmethod
    def of(cls, settings: BufferSettings, fates: Fates, stored: Sequence[StoredGroup]) -> Buffer:
        """A buffer that goes on with these complete groups."""
        batches = Batches(settings, next_version=fates.version)
        by_name = {group.group_id: group for group in stored}
        for handed in fates.handed.values():
            batches.recover(handed, [by_name.pop(n) for n in handed.groups if n in by_name])
        batches.queue.update(by_name)
        return cls(settings, fates, batches)

    def start(self, now_s: float) -> list[Effect]:
        """The rollout actor issues nothing before it knows what is here."""
        del now_s
        return self._introduce()

    def _introduce(self) -> list[Effect]:
        self.credits.begin_anew()
        return [*self.courier.introduce(), *self.credits.grant(self.fates.num_spent)]

    def _recovered(self) -> StoreRecovered:
        handed = [name for cut in self.batches.untrained() for name in cut.group_ids]
        return StoreRecovered(
            stored=(*handed, *self.batches.queue, *self.storing),
            trained=dict(self.fates.trained),
            groups_spent=self.fates.num_spent,
        )

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door."""
        effects = self._decide(event, now_s)
        effects += self._serve(now_s)
        if self.waste.unwritten:
            effects += self._mark((), [])
        return effects + self.credits.grant(self.fates.num_spent) + self._reply_drained()

    def _decide(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(source, message, request):
                return self._received(source, message, request, now_s)
            case WorkDone(key, result) if key.startswith(JUDGE):
                if fault := self.judge.fault_of(event):
                    return [Fail(fault)]
                return self._judged([(self.storing.pop(key.removeprefix(JUDGE)), str(result))])
            case WorkDone(key, _, error):
                return self._written(key, error)
            case Unanswered(key, "rollout") if self.courier.missed(key):
                return self._introduce()
            case Taken(key) if self.courier.taken(key):
                return self._introduce()
            case Answered() | Unanswered() | Woken() | Taken():
                return []

    def _received(
        self, source: str, message: Message, request: Request | None, now_s: float
    ) -> list[Effect]:
        match message:
            case TrajectoryFinished():
                return self._arrived([(message.trajectory, *message.others)], now_s)
            case TrajectoriesFinished():
                return self._arrived([(row,) for row in message.trajectories], now_s)
            case GroupOpened():
                return self._opened(message, now_s)
            case GroupResized():
                return self._resized(message)
            case GroupAbandoned():
                return self._abandoned(message)
            case BatchRequested():
                assert request is not None
                self.batches.requested(message, request, now_s)
            case StepTrained():
                return self._trained(message)
            case GroupsRefused():
                return self._refused(message)
            case TokensAccounted():
                self.waste.report(message.tokens)
            case CheckpointSaved():
                effects = self._mark((Covered(version=message.step),), [], covered=True)
                self.fates.forget(keep=set(self.courier.unheard()))
                self.courier.forget(self.fates.gone)
                return effects
            case VersionPublished():
                self.batches.published = message.version
                return self._drop_late()
            case PeerRestarted():
                return self._introduce() if message.actor == "rollout" else []
            case IssueEnded(reason=reason, draining=draining):
                self.batches.end(reason, draining=draining)
            case Drain():
                assert request is not None
                self._draining = request
                self.batches.end("the buffer drains", draining=True)
            case _:
                raise TypeError(f"buffer was told {type(message).__name__} by {source}")
        return []

    # ---- assembling ----------------------------------------------------------------------

    def _opened(self, message: GroupOpened, now_s: float) -> list[Effect]:
        name = message.group_id
        if self.fates.knows(name):
            return self.courier.fate(name, self.fates, self.writing)
        if self._holds(name):
            return []  # GroupStored was said, or follows the journal
        return self._completed((self.assembling.open(message, now_s),))

    def _resized(self, message: GroupResized) -> list[Effect]:
        if assembly := self.assembling.groups.get(message.group_id):
            assembly.size = message.size
        return self._completed((assembly,) if assembly else ())

    def _arrived(self, members: Sequence[tuple[Trajectory, ...]], now_s: float) -> list[Effect]:
        touched: dict[str, Assembly] = {}
        for rows in members:
            name = rows[0].group_id
            known = self._holds(name) or self.fates.knows(name)
            size = 1 if self.settings.imports else 0
            assembly = None if known else self.assembling.add(rows, size, now_s)
            if assembly is None:
                self.waste.add("late_duplicate", rows)
            else:
                touched[name] = assembly
        return self._completed(tuple(touched.values()))

    def _holds(self, name: str) -> bool:
        return name in self.storing or self.batches.holds(name)

    def _completed(self, assemblies: Sequence[Assembly]) -> list[Effect]:
        """Judge and store what has become complete."""
        complete = self.assembling.take_complete(assemblies)
        judged, asked = self.judge.look(complete, self.batches.published)
        self.storing.update({group.group_id: group for group, _ in asked})
        return [*(work for _, work in asked), *self._judged(judged)]

    def _judged(self, judged: Sequence[tuple[StoredGroup, str]]) -> list[Effect]:
        effects: list[Effect] = []
        for group, reason in judged:
            self.judge.count(group, reason)
            if reason:
                effects += self._drop(group.group_id, reason)
            if fault := self.judge.sieve.fault:
                return [*effects, Fail(fault)]
        return effects + self._store([group for group, reason in judged if not reason])

    def _store(self, groups: Sequence[StoredGroup]) -> list[Effect]:
        if not self.settings.journal:
            return self._stored(groups)
        self.storing.update({group.group_id: group for group in groups})
        return [KeepGroup(f"keep/{group.group_id}", group) for group in groups]

    def _stored(self, groups: Sequence[StoredGroup]) -> list[Effect]:
        for group in groups:
            self.batches.queue[group.group_id] = group
        if self.settings.imports:
            names = tuple(group.group_id for group in groups)
            return [Tell("rollout", GroupsStored(group_ids=names))] if names else []
        return [
            Tell("rollout", GroupStored(group_id=group.group_id, num_tokens=group.num_tokens))
            for group in groups
        ]

    # ---- dropping ------------------------------------------------------------------------

    def _abandoned(self, message: GroupAbandoned) -> list[Effect]:
        """Let a group go, unless a batch has it already."""
        name = message.group_id
        if name in self.fates.gone:
            return self.courier.fate(name, self.fates, self.writing)
        self.waste.add("abandoned", self.assembling.pop(name))
        if name in self.fates.trained or self.batches.was_handed(name) or name in self.storing:
            return []  # it is stored as soon as the journal has it; that word answers the order
        if group := self.batches.queue.pop(name, None):
            self.waste.add("abandoned", group.trajectories)
        self.waste.count_aborted()
        return self._drop(name, message.reason)

    def _drop_late(self) -> list[Effect]:
        """Groups beyond the limit leave as soon as a new version makes them so (BU-4)."""
        effects: list[Effect] = []
        for group, reason in self.batches.take_late():
            self.waste.add(f"dropped_{reason}", group.trajectories)
            self.waste.count_stale(self.batches.age(group))
            effects += self._drop(group.group_id, reason, retry=self.settings.late == "retry")
        return effects

    def _drop(
        self, name: str, reason: str, *, retry: bool = False, consumed: bool = False
    ) -> list[Effect]:
        gone = Gone(group=name, reason=reason, retry=retry, consumed=consumed)
        gone = self.fates.gone.get(name, gone)  # the first fate is the one told
        if consumed and name not in self.fates.gone:
            self.courier.spent(name)
        return self._mark((gone,), [Tell("rollout", gone.word())])

    # ---- training ------------------------------------------------------------------------

    def _serve(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.batches.is_waited_for:
            effects += self._drop_late()
        cut = self.batches.cut(self.waste)
        if cut is not None:
            count = sum(group.num_loss_tokens for group in cut.groups.values())
            handed = Handed(step=cut.step, version=cut.version, groups=cut.group_ids, tokens=count)
            self.fates.apply(handed)
            if self.settings.journal:
                effects.append(WriteMarks(cut.begin_write(), (handed,)))
        return [*effects, *self.batches.answer(now_s), *self._drop_surplus()]

    def _drop_surplus(self) -> list[Effect]:
        """What was sampled beyond need, and no batch can take any more."""
        effects: list[Effect] = []
        closed = self.batches.is_closed
        for name in [*self.batches.queue, *self.assembling.announced()] if closed else ():
            group = self.batches.queue.pop(name, None)
            rows = group.trajectories if group else self.assembling.pop(name)
            self.waste.add("dropped_over_sampled", rows)
            # Their credits are spent, or others would go out in their place at once.
            retry = self.settings.retries_unused
            effects += self._drop(name, "over_sampled", retry=retry, consumed=True)
        return effects

    def _trained(self, message: StepTrained) -> list[Effect]:
        """A batch is spent, and with it every older one: word of that died with our journal."""
        if message.version <= self.fates.oldest_checkpoint:
            return []  # said again, long after
        older = [each for each in self.fates.handed.values() if each.step < message.step]
        effects: list[Effect] = []
        for each in older:
            effects += self._spent(each.step, each.version + 1, each.groups)
        return effects + self._spent(message.step, message.version, message.group_ids)

    def _spent(self, step: int, version: int, names: tuple[str, ...]) -> list[Effect]:
        tokens = self.batches.trained(step, names)
        for name in names:
            self.assembling.pop(name)
        told = GroupsTrained(group_ids=names, step=step, version=version)
        spent = Spent(step=step, version=version, groups=names, tokens=tokens)
        return self._mark((spent,), [self.courier.trained(told)])

    def _refused(self, message: GroupsRefused) -> list[Effect]:
        effects: list[Effect] = []
        for name, reason in zip(message.group_ids, message.reasons, strict=True):
            if group := self.batches.refuse(message.step, name):
                self.waste.add("refused_at_door", group.trajectories)
            effects += self._drop(name, reason, consumed=True)
        return effects

    # ---- journal -------------------------------------------------------------------------

    def _mark(
        self, marks: tuple[Mark, ...], then: list[Effect], *, covered: bool = False
    ) -> list[Effect]:
        """Apply marks now, and what they account for; say `then` once they are written (BU-3)."""
        marks = (*self.waste.take_marks(), *marks)
        self.fates.apply_all(marks)
        return self.writing.mark(marks, then, covered=covered)

    def _written(self, key: str, error: str) -> list[Effect]:
        if error:
            return [Fail(f"the journal of groups cannot be written: {key}: {error}")]
        kind, _, name = key.partition("/")
        if kind == "keep":
            return self._stored((self.storing.pop(name),))
        if kind == "handed":
            self.batches.written(key)
            return []
        return self.courier.settled(self.writing.written(key))

    # ---- credits and the rest ------------------------------------------------------------

    def _reply_drained(self) -> list[Effect]:
        if (request := self._draining) is None or self.storing or self.writing:
            return []
        self._draining = None
        return [Reply(request, Drained(actor="buffer"))]

    def validate(self) -> None:
        """Assert BU-1 and BU-2."""
        held = len(self.storing) + len(self.batches.queue)
        most = self.settings.groups_max + self.batches.num_lacking
        assert held <= most, f"BU-1 (capacity): {held} groups, {most} are the most"
        elsewhere = self.storing.keys() | self.assembling.groups.keys()
        assert not elsewhere & self.batches.queue.keys(), "BU-2 (once)"
        self.batches.validate()

    def statistics(self) -> dict[str, object]:
        """Depths, versions and the waste statement."""
        return {
            "assembling": len(self.assembling.groups),
            "storing": len(self.storing),
            "spent": self.fates.num_spent,
            "granted_groups": self.credits.granted,
            **self.batches.statistics(),
            "tokens_held": self.batches.num_tokens_held,
            "tokens_by_account": self.fates.accounts,
            "tokens_at_risk": self.assembling.num_loss_tokens,
        }

    def working_on(self) -> str:
        """Which trajectory the next batch waits for, in names."""
        return self.batches.working_on(self.assembling.groups.values())
