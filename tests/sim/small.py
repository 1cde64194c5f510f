"""Flows small enough that every order of their deliveries can be tried."""

from __future__ import annotations

import re
from functools import partial
from random import Random

from sim.choosers import Chooser, Odometer
from sim.disk import Disk
from sim.engines import Engine
from sim.learners import Checkpoint, Trainer
from sim.network import Network
from sim.overseer import Supervisor
from sim.rows import trajectory
from sim.standins import Scripted
from sim.topologies import topology
from sim.words import describe
from sim.world import PROMPTS

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.effects import Effect, Event, Received, Reply, Tell
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.messages.agent import RunEpisode
from milepost.messages.buffer import GroupAbandoned, TrajectoryFinished
from milepost.messages.engine import PauseMode
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.session import (
    AbandonTrajectory,
    FinishTrajectory,
    OpenSessions,
    SessionsOpened,
    TrajectorySent,
)
from milepost.messages.shared import Status, VersionSpan


class Host(Scripted):
    """Agent and session in one: every episode ends at once, every verdict is delivered at once."""

    def __init__(self, failing: frozenset[str] = frozenset()) -> None:
        self._failing = failing

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        match event:
            case Received(_, OpenSessions(), request) if request:
                return [Reply(request, SessionsOpened())]
            case Received(_, RunEpisode() as message):
                failed = f"{message.trajectory_id}/{message.attempt}" in self._failing
                ended = EpisodeEnded(
                    trajectory_id=message.trajectory_id,
                    attempt=message.attempt,
                    status=Status.FAILED if failed else Status.COMPLETED,
                    reward=None if failed else 1.0,
                )
                return [Tell("rollout", ended)]
            case Received(_, FinishTrajectory() as message, request) if request:
                row = trajectory(
                    message.trajectory_id,
                    spans=(VersionSpan(start=1, end=2, version=0),),
                    reward=message.reward,
                )
                sent = TrajectorySent(
                    trajectory_id=message.trajectory_id, num_tokens=2, num_sampled_tokens=1
                )
                return [Tell("buffer", TrajectoryFinished(trajectory=row)), Reply(request, sent)]
            case Received(_, AbandonTrajectory()) | Received(_, GroupAbandoned()):
                return []
            case _:
                return []


def some_groups(
    chooser: Chooser,
    *,
    prompts: int = 1,
    samples: int = 2,
    failing: frozenset[str] = frozenset(),
    failed: str = "retry",
    journal: bool = True,
) -> Ledger:
    """One step's groups, sampled, stored and trained: rollout and buffer are the real ones."""
    shape = topology(
        steps=1,
        prompts=prompts,
        samples=samples,
        publisher=False,
        rollout={"failed": failed, "episode_retries_max": 1},
        buffer={"journal": journal},
    )
    quick = frozenset({"supervisor", "agent-0", "session-0", "trainer-0", "work of rollout"})
    network, disk = Network(chooser, quick=quick), Disk()
    saved: list[Checkpoint] = []
    trainer = Trainer(
        rank=0,
        world_size=1,
        steps=1,
        sync=False,
        publish_every=1,
        checkpoint_every=0,
        has_publisher=False,
        save=saved.append,
        on_batch=lambda *_: None,
        step_s=0.0,
    )
    supervisor = Supervisor()
    rollout = Rollout.of(RolloutSettings.of(shape), PromptOrder(PROMPTS, 0, shuffle=True), Ledger())
    buffer = Buffer.of(BufferSettings.of(shape), Fates(), ())
    if isinstance(chooser, Odometer):
        chooser.fingerprint = lambda: fingerprint(network, rollout, buffer, trainer)
    network.add("supervisor", lambda _: supervisor)
    network.add("rollout", lambda _: rollout, disk.rollout)
    network.add("buffer", lambda _: buffer, disk.buffer)
    network.add("agent-0", lambda _: Host(failing))
    network.add("session-0", lambda _: Host())
    network.add("trainer-0", lambda _: trainer)
    _run(network, supervisor, {"trainer-0"})
    ledger = rollout.book.ledger
    assert len(saved[-1].trained) == ledger.num_trained == prompts, ledger
    return ledger


class Maker(Scripted):
    """Announces version 0 and 1 in one breath."""

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        effects: list[Effect] = []
        for version in (0, 1):
            trainer = Trainer(0, 1, 1, sync=False, publish_every=1, checkpoint_every=0,
                              has_publisher=True, save=lambda _: None, on_batch=lambda *_: None,
                              version=version)  # fmt: skip
            effects += trainer._publish()
        return effects

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del event, now_s
        return []


def two_versions(chooser: Chooser, engines: int) -> Network:
    """Two versions in a row to some engines: whatever the order, the newest is served by all."""
    names = tuple(f"engine-{index}" for index in range(engines))
    network = Network(
        chooser,
        quick=frozenset({"supervisor", "maker", *names, *(f"work of {name}" for name in names)}),
    )
    publisher = Publisher.of(
        PublisherSettings(
            engines=names,
            listeners=("supervisor",),
            leader="maker",
            pause=PauseMode.RETRACT,
            epoch_deadline_s=100.0,
            canary=False,
            canary_difference_max=0.0,
        )
    )
    supervisor = Supervisor()
    served = {name: Engine(name, Random(0)) for name in names}
    if isinstance(chooser, Odometer):
        chooser.fingerprint = partial(fingerprint, network, publisher, *served.values())
    network.add("supervisor", lambda _: supervisor)
    network.add("maker", lambda _: Maker())
    network.add("publisher", lambda _: publisher)
    for name in names:
        network.add(name, partial(_given, served[name]), served[name].perform)
    for name in network.actors:
        network.start(name)
    while network.now_s < 50.0 and network.step():
        pass
    assert publisher.epochs.serving is not None
    assert publisher.epochs.serving.version == 1
    assert {engine.version for engine in served.values()} == {1}, served
    return network


def fingerprint(network: Network, *cores: object) -> str:
    """The whole state, without what only tells in which order it came about: times and numbers."""
    parts = [state_of(core) for core in cores]
    for pair, link in sorted(network.links.by_pair.items()):
        parts.append(f"{pair} {[describe(mail.event) for mail in link.mail]}")
    for name, actor in sorted(network.actors.items()):
        works = [work.key for hand in actor.hands.values() for work in hand.works]
        parts.append(f"{name} {works} {sorted(actor.asks.values())}")
    return re.sub(r"\d+\.\d+|message_id=\d+|/\d+\b", "", " ".join(parts))


def state_of(core: object) -> str:
    """What decides how this core goes on."""
    match core:
        case Rollout():
            flight = core.flight
            return repr((
                core.book.ledger, core.book.granted, core.book.offset, core.waits_for,
                flight.groups, flight.pending, flight._queue, sorted(flight.asks),
            ))  # fmt: skip
        case Buffer():
            batches = core.batches
            cuts = [
                (at, c.group_ids, c.is_trained, c.is_written) for at, c in batches._cuts.items()
            ]
            members = [
                (a.group_id, a.size, sorted(a.members)) for a in core.assembling.groups.values()
            ]
            return repr((
                core.fates, cuts, members, list(batches.queue), sorted(core.storing),
                sorted(batches._parked), core.credits.granted, sorted(core.courier._unheard),
            ))  # fmt: skip
        case Publisher():
            epochs = core.epochs
            lanes = [
                (name, str(lane), lane.confirmed, lane.is_waiting)
                for name, lane in epochs.lanes.items()
            ]
            epoch = epochs.epoch
            under_way = epoch and (sorted(epoch.members), epoch.is_activating)
            weights = [*epochs.arriving.values(), epochs.serving, epoch and epoch.weights]
            come = [(each.version, sorted(each.buckets)) for each in weights if each]
            proofs = sorted(
                (name, each.step, sorted(core.proofs._keys[name].values()), each.warm is None)
                for name, each in core.proofs._open.items()
            )
            return repr((lanes, under_way, come, sorted(epochs.arriving), proofs))
        case Trainer():
            return repr((core.version, core.trained, core._training is None, core._next is None))
        case Engine():
            return repr((core.version, core.staged))
        case _:
            raise TypeError(core)


def _given(engine: Engine, incarnation: int) -> Engine:
    assert incarnation == 0
    return engine


def _run(network: Network, supervisor: Supervisor, needed: set[str]) -> None:
    for name in network.actors:
        network.start(name)
    for _ in range(10_000):
        busy = network.links or network.hands.doing
        if supervisor.finished >= needed and not busy:
            return
        if not network.step():
            break
    raise AssertionError("the flow does not end")
