"""Two ranks, a buffer and a publisher in every order of events, with losses, refusals, restarts.

Whatever happens, every step is trained once, on both ranks, after both doors let its groups in;
collective work meets in one order; the run ends; and what it ends with was served and saved.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import pytest
from unit.trainer.play import GOOD, MODEL, PLAN, batch

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.follower import Follower
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import (
    BatchVerdict,
    CheckBatch,
    Exported,
    ExportVersion,
    Refusal,
    SaveCheckpoint,
    Saved,
    TrainBatch,
)
from milepost.messages.buffer import BatchRequested, GroupsRefused, StepTrained
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.shared import Message
from milepost.messages.supervisor import PeerRestarted, WorkFinished
from milepost.messages.trainer import RankOrdered, VersionFailed, VersionPublished

STEPS = 4
RANKS = ("trainer-0", "trainer-1")


@dataclass
class World:
    """Both cores and everything around them; one random choice at a time."""

    random: Random
    cores: dict[str, Trainer | Follower]
    links: dict[tuple[str, str], deque[Tell]] = field(default_factory=lambda: defaultdict(deque))
    asked: dict[str, Ask] = field(default_factory=dict)
    torch: dict[str, deque[Work]] = field(default_factory=lambda: defaultdict(deque))
    doors: dict[str, deque[CheckBatch]] = field(default_factory=lambda: defaultdict(deque))
    timers: dict[tuple[str, str], float] = field(default_factory=dict)
    now_s: float = 0.0
    refused: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    bad: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    served: list[int] = field(default_factory=list)
    arriving: VersionReady | None = None
    done: list[str] = field(default_factory=list)
    """Collective work, in the order both ranks did it."""
    told: list[Message] = field(default_factory=list)
    losses: dict[str, int] = field(default_factory=lambda: {"publisher": 2, "other": 6})
    """Words that may still be lost; three failed publications in a row would end the run."""
    restarts: int = 0
    """Times that the publisher may still die."""
    forgets: int = 3
    """Times that the buffer may still die with a refusal."""

    def start(self) -> None:
        for name, core in self.cores.items():
            self.carry_out(name, core.start(self.now_s))

    def feed(self, name: str, event: Event) -> None:
        core = self.cores[name]
        effects = core.handle(event, self.now_s)
        core.validate()
        self.carry_out(name, effects)

    def carry_out(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self.links[name, effect.to].append(effect)
                case Ask():
                    self.asked[name] = effect
                case Wake():
                    self.timers[name, effect.key] = effect.at_s
                case CheckBatch():
                    self.doors[name].append(effect)
                case Work():
                    known = [each.key for each in self.torch[name]]
                    assert effect.key not in known, f"{name}: {effect.key} is already being done"
                    self.torch[name].append(effect)
                case Fail():
                    raise AssertionError(f"{name}: {effect.reason}")
                case _:
                    raise AssertionError(f"{name} ordered {effect}")

    # ---- what may happen next ------------------------------------------------------------

    def choices(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = [
            partial(self.deliver, *link) for link, queue in self.links.items() if queue
        ]
        found += [partial(self.answer, name) for name in self.asked]
        found += [partial(self.check, name) for name, doors in self.doors.items() if doors]
        if all(self.torch[name] for name in RANKS):
            found.append(self.collective)
        if self.arriving is not None:
            found.append(self.publish)
        if self.restarts and found:
            found.append(self.restart_publisher)
        return found

    def run(self) -> None:
        self.start()
        for _ in range(5000):
            choices = self.choices()
            if choices:
                self.random.choice(choices)()
            elif due := min(self.timers, key=lambda key: self.timers[key], default=None):
                self.now_s = max(self.now_s, self.timers.pop(due))
                self.feed(due[0], Woken(due[1]))
            else:
                return
        raise AssertionError("no end in sight")

    def deliver(self, source: str, to: str) -> None:
        tell = self.links[source, to].popleft()
        kind = "publisher" if to == "publisher" else "other"
        may_be_lost = not isinstance(tell.message, RankOrdered) and tell.key and self.losses[kind]
        if may_be_lost and self.random.random() < 0.2:
            self.losses[kind] -= 1
            self.feed(source, Unanswered(tell.key, to, "lost"))
            return
        self.hear(source, to, tell.message)
        if tell.confirm:
            self.feed(source, Taken(tell.key))

    def hear(self, source: str, to: str, message: Message) -> None:
        if to in self.cores:
            self.feed(to, Received(source, message))
            return
        self.told.append(message)
        match message:
            case GroupsRefused():
                self.refused[message.step] += 1
                if self.random.random() < 0.3:
                    # Now and then it dies before it has written down what it took.
                    forgets = self.forgets and self.random.random() < 0.5
                    self.forgets -= forgets
                    self.refused[message.step] -= forgets
                    restarted = PeerRestarted(actor="buffer", incarnation=1)
                    for name in RANKS:
                        self.feed(name, Received("supervisor", restarted))
            case VersionReady():
                self.arriving = message
            case _:
                pass

    def answer(self, name: str) -> None:
        asked = self.asked.pop(name)
        assert isinstance(asked.message, BatchRequested)
        step = asked.message.step
        if self.random.random() < 0.1:
            self.feed(name, Unanswered(asked.key, "buffer", "deadline"))
            return
        groups = (f"try{self.refused[step]}-",)
        self.feed(name, Answered(asked.key, "buffer", batch(step, groups)))

    def check(self, name: str) -> None:
        """A door; it refuses a batch now and then, and always the same one."""
        work = self.doors[name].popleft()
        (group,) = work.batch.group_ids
        key = (work.batch.step, int(group.removeprefix("try").partition("-")[0]))
        if key not in self.bad:
            bad = {rank for rank in range(2) if self.random.random() < 0.15}
            self.bad[key] = bad
        refusals = (Refusal(group, "C1"),) if RANKS.index(name) in self.bad[key] else ()
        self.feed(name, WorkDone(work.key, BatchVerdict(refusals, {group: 0})))

    def collective(self) -> None:
        """Both ranks come to the same work, or hang for ever."""
        works = [self.torch[name].popleft() for name in RANKS]
        assert type(works[0]) is type(works[1]), works
        assert works[0].key == works[1].key, works
        self.done.append(works[0].key)
        if isinstance(works[0], TrainBatch) and isinstance(works[1], TrainBatch):
            assert works[0].batch.group_ids == works[1].batch.group_ids, "parts of two batches"
            (group,) = works[0].batch.group_ids
            key = (works[0].batch.step, int(group.removeprefix("try").partition("-")[0]))
            assert not self.bad[key], "TR-1: a door refused it"
        for name, work in zip(RANKS, works, strict=True):
            self.feed(name, WorkDone(work.key, self.result(name, work)))

    def result(self, name: str, work: Work) -> object:
        match work:
            case TrainBatch():
                return GOOD
            case ExportVersion():
                ready = VersionReady(
                    version=work.version, tensors=(), num_buckets=1, digest="", final=work.final
                )
                bucket = BucketReady(version=work.version, index=0, names=(), tensors=())
                return Exported(ready, (bucket,), 0.0) if name == RANKS[0] else None
            case SaveCheckpoint():
                return Saved(work.step, "folder", 0.0)
            case _:
                raise AssertionError(work)

    def restart_publisher(self) -> None:
        """It forgets what it was told; what is on its way it still gets."""
        self.restarts -= 1
        self.arriving = None
        restarted = PeerRestarted(actor="publisher", incarnation=1)
        for name in RANKS:
            self.feed(name, Received("supervisor", restarted))

    def publish(self) -> None:
        assert self.arriving is not None
        ready, self.arriving = self.arriving, None
        if self.losses["publisher"] and self.random.random() < 0.1:
            self.losses["publisher"] -= 1
            failed = VersionFailed(version=ready.version, serving=0, reason="engine-0 refused")
            self.feed(RANKS[0], Received("publisher", failed))
            return
        self.served.append(ready.version)
        published = VersionPublished(version=ready.version, final=ready.final)
        for name in RANKS:
            self.feed(name, Received("publisher", published))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("mode", ["eager", "late", "sync", "mourning"])
def test_every_order_of_events_trains_every_step_once_and_ends(seed: int, mode: str) -> None:
    plan = replace(
        PLAN,
        ranks=RANKS,
        steps=STEPS,
        prefetch=mode == "eager",
        sync=mode == "sync",
        checkpoint_every_steps=2,
    )
    leader = Trainer.of(
        plan,
        model=MODEL,
        version=0,
        trained=TrainedGroups(),
    )
    follower = Follower.of(plan, 1, MODEL)
    world = World(Random(seed), {RANKS[0]: leader, RANKS[1]: follower})
    world.restarts = 2 if mode == "mourning" else 0
    world.run()
    assert [key for key in world.done if key.startswith("train")] == [
        f"train/{step}" for step in range(STEPS)
    ]
    trained = [each for each in world.told if isinstance(each, StepTrained)]
    assert {each.step for each in trained} == set(range(STEPS))
    assert len(leader.trained) == STEPS
    assert world.served == sorted(world.served)
    assert world.served[-1] == STEPS
    assert "save/2" in world.done
    assert world.done.count("save/4") == 1
    assert any(isinstance(each, WorkFinished) for each in world.told)
    if mode == "sync":
        order = [key for key in world.done if not key.startswith("save")]
        assert order[0] == "export/0"
        for step in range(STEPS):
            assert f"export/{step}" in order[: order.index(f"train/{step}")]
