"""How full the engines stay: our refill against the ideal one, on lengths with a heavy tail.

Lengths are lognormal (sigma 1, median 1 s), batches are 8 groups of 8, and a training step takes a
share of the median rollout of one batch. The real rollout and buffer cores run on the simulated
clock. Ideal: every place is refilled the instant it is free, groups do not exist, and the trainer
takes any 64 finished trajectories. Synchronous: a batch is sampled, then trained, and so on.

The ideal never waits for the last trajectories of a run. Ours does, unless it may sample some
groups beyond need: with a short training step, waiting for the very slowest of the last groups is
a fifth of the whole run. Both are printed.
"""

from __future__ import annotations

import heapq
from random import Random
from statistics import median

import pytest
from sim import network as simulated
from sim.choosers import Seeded
from sim.disk import Disk
from sim.learners import Trainer
from sim.network import Network
from sim.overseer import Supervisor
from sim.small import Host
from sim.standins import Scripted
from sim.topologies import topology

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.effects import Effect, Event, Received, Tell, Wake, Woken
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.messages.agent import RunEpisode
from milepost.messages.rollout import EpisodeEnded
from milepost.messages.shared import Prompt, Status

GROUPS, SAMPLES, STEPS, SIGMA = 8, 8, 200, 1.0
BATCH = GROUPS * SAMPLES


def lengths(seed: int) -> Random:
    return Random(seed)


def draw(random: Random) -> float:
    return random.lognormvariate(0.0, SIGMA)


class TimedAgent(Scripted):
    """Every episode takes as long as its length."""

    def __init__(self, seed: int) -> None:
        self._random = lengths(seed)
        self._running: dict[str, RunEpisode] = {}

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Received(_, RunEpisode() as message):
                key = f"{message.trajectory_id}/{message.attempt}"
                self._running[key] = message
                return [Wake(key, now_s + draw(self._random))]
            case Woken(key):
                message = self._running.pop(key)
                ended = EpisodeEnded(
                    trajectory_id=message.trajectory_id,
                    attempt=message.attempt,
                    status=Status.COMPLETED,
                    reward=1.0,
                )
                return [Tell("rollout", ended)]
            case _:
                return []


def ours(in_flight: int, step_s: float, refill: str, seed: int, spare: int = 0) -> float:
    """Seconds for `STEPS` steps with the real cores; prints nothing, asserts every invariant."""
    shape = topology(
        steps=STEPS,
        prompts=GROUPS,
        samples=SAMPLES,
        publisher=False,
        rollout={
            "trajectories_in_flight_max": in_flight,
            "refill": refill,
            "over_sampling_groups": spare,
        },
        buffer={"groups_max": 64, "journal": False},
    )
    settings = RolloutSettings.of(shape)
    settings.agents["agent-0"] = in_flight
    order = PromptOrder([Prompt(prompt_id="p", messages=[])], 0, shuffle=False)
    supervisor = Supervisor()
    network = Network(Seeded(seed))
    trainer = Trainer(
        rank=0,
        world_size=1,
        steps=STEPS,
        sync=False,
        publish_every=1,
        checkpoint_every=0,
        has_publisher=False,
        save=lambda _: None,
        on_batch=lambda *_: None,
        step_s=step_s,
    )
    disk = Disk()
    network.add("supervisor", lambda _: supervisor)
    network.add("rollout", lambda _: Rollout.of(settings, order, Ledger()), disk.rollout)
    network.add("buffer", lambda _: Buffer.of(BufferSettings.of(shape), Fates(), ()), disk.buffer)
    network.add("agent-0", lambda _: TimedAgent(seed))
    network.add("session-0", lambda _: Host())
    network.add("trainer-0", lambda _: trainer)
    for name in network.actors:
        network.start(name)
    while not supervisor.finished:
        assert network.step()
    return network.now_s


def ideal(in_flight: int, step_s: float, seed: int) -> float:
    """The same without groups, messages or bounds."""
    random = lengths(seed)
    running = [draw(random) for _ in range(in_flight)]
    heapq.heapify(running)
    finished = trained_s = 0.0
    for _ in range(STEPS):
        for _ in range(BATCH):
            finished = heapq.heappop(running)
            heapq.heappush(running, finished + draw(random))
        trained_s = max(trained_s, finished) + step_s
    return trained_s


def synchronous(step_s: float, seed: int) -> float:
    """Sample a batch, train it, sample the next."""
    random = lengths(seed)
    return sum(max(draw(random) for _ in range(BATCH)) + step_s for _ in range(STEPS))


@pytest.mark.parametrize(("in_flight", "share"), [(128, 0.5), (64, 0.5), (32, 0.5), (128, 0.1)])
def test_refill_by_sample_is_within_five_percent_of_the_ideal(
    in_flight: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "STEP_S", 1e-6)
    random = lengths(0)
    batch_s = median(max(draw(random) for _ in range(BATCH)) for _ in range(1001))
    step_s = share * batch_s
    sync_s = synchronous(step_s, 1)
    best = sync_s / ideal(in_flight, step_s, 1)
    spare = in_flight // SAMPLES
    exact = sync_s / ours(in_flight, step_s, "sample", 1)
    sample = sync_s / ours(in_flight, step_s, "sample", 1, spare)
    group = sync_s / ours(in_flight, step_s, "group", 1, spare)
    print(
        f"\n{in_flight:4d} in flight, trainer {share}: speed-up over synchronous: ideal {best:.2f},"
        f" by sample {sample:.2f} ({sample / best:.1%}) with {spare} spare groups and {exact:.2f} "
        f"without, by group {group:.2f}"
    )
    assert sample >= 0.95 * best
