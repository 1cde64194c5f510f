"""From a trained step to engines that serve it, between real cores: trainer, publisher, engines.

Publisher and engines die at any moment and start again; works of the trainer (two threads), of
engines, and their news come in any order. Batches come from a store that always has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TypeAlias

import pytest
from sim.choosers import Seeded
from sim.engines import Engine
from sim.hands import Hands
from sim.network import Network
from sim.overseer import Supervisor
from sim.rows import PROBE_ROW, SHAPES, digest_of, probe_of, trajectory, weights_of
from sim.standins import Scripted
from sim.topologies import topology

from milepost.actors.effects import Effect, Event, Received, Reply, Work
from milepost.actors.engine.interface import EpochError, Switched
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import (
    BatchVerdict,
    CheckBatch,
    Exported,
    ExportVersion,
    ModelFacts,
    SaveCheckpoint,
    Saved,
    StepOutcome,
    TrainBatch,
)
from milepost.messages.buffer import Batch, BatchRequested
from milepost.messages.publisher import BucketReady, VersionReady
from milepost.messages.supervisor import EventReported, PeerRestarted

STEPS = 4
QUICK_S = 30.0
"""Far less than the deadline of an epoch, far more than deaths and switches take."""
LOADING_S = 500.0
"""More than all tries take that an engine has which does not answer."""
RARE = (104, 741, 2168, 2865, 3469, 21941)
"""Seeds in which a publisher was once told of deaths that its predecessor knew to be past."""
MakeEngine: TypeAlias = Callable[..., Engine]
MODEL = ModelFacts(vocabulary=1, tokenizer_hash="", template_hash="")


class Store(Scripted):
    """Has a batch of one group for every question, and takes whatever it is told."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        match event:
            case Received(_, BatchRequested(step=step), request) if request:
                return [Reply(request, batch(step))]
            case _:
                return []


def batch(step: int) -> Batch:
    row = trajectory(f"g{step}.0", spans=(), reward=1.0)
    return Batch(
        step=step,
        trajectories=(row,),
        group_ids=(row.group_id,),
        num_trajectories=1,
        num_loss_tokens=0,
        minibatch_of=(0,),
        minibatch_loss_tokens=(0,),
        minibatch_trajectories=(1,),
        metrics={},
        wait_s=0.0,
    )


def workshop(work: Work) -> object:
    """The trainer's hands."""
    match work:
        case CheckBatch(_, batch):
            return BatchVerdict((), dict.fromkeys(batch.group_ids, 0))
        case TrainBatch():
            return StepOutcome(metrics={}, num_tokens=1, train_s=0.1, spread=True)
        case ExportVersion(_, version, final):
            return exported(version, final=final)
        case SaveCheckpoint(_, step):
            return Saved(step, "folder", 0.0)
        case _:
            raise TypeError(work)


def exported(version: int, *, final: bool) -> Exported:
    ready = VersionReady(
        version=version,
        tensors=SHAPES,
        num_buckets=len(SHAPES),
        digest=digest_of(version),
        final=final,
        probe_rows=(PROBE_ROW,),
        probe_logprobs=(probe_of(version),),
    )
    tensors = (weights_of(version),)
    buckets = [
        BucketReady(version=version, index=index, names=(spec.name,), tensors=tensors)
        for index, spec in enumerate(SHAPES)
    ]
    return Exported(ready, tuple(buckets), 0.0)


def thread_of(work: Work) -> str:
    return "door" if isinstance(work, CheckBatch) else "torch"


def run_publications(seed: int, make: MakeEngine = Engine, loading_s: float = 0.0) -> Network:
    """A run to its end, and until its engines serve what it published; raises what went wrong."""
    random = Random(f"publications/{seed}")
    shape = topology(steps=STEPS, engines=random.choice((1, 2)), sync=random.random() < 0.5)
    network = Network(Seeded(seed), hands=Hands(at_once=False))
    supervisor, settings = Supervisor(), PublisherSettings.of(shape)
    network.add("supervisor", lambda _: supervisor, is_stubborn=True)
    for name in ("buffer", "rollout", *shape.names("session")):
        network.add(name, lambda _: Store(), is_stubborn=True)
    plan = TrainerPlan.of(shape)
    trainer = Trainer.of(plan, model=MODEL, version=0, trained=TrainedGroups())
    network.add("trainer-0", lambda _: trainer, workshop, hand_of=thread_of)
    network.add("publisher", lambda _: Publisher.of(settings))
    for name in shape.names("engine"):
        made = partial(_engine, make, name, seed)
        network.add(name, made, partial(_takes, network, name))
    for name in network.actors:
        network.start(name)
    mortals, deaths_left = ["publisher", *shape.names("engine")], random.choice((1, 2, 3))
    for _ in range(20_000):
        if "trainer-0" in supervisor.finished and _serve_last(network, shape.names("engine")):
            return network
        if deaths_left and random.random() < 0.02:
            deaths_left -= 1
            _kill(network, random.choice(mortals), random, loading_s)
        if not network.step():
            break
    raise AssertionError(f"seed {seed} does not end: {trainer.working_on()}")


def _serve_last(network: Network, engines: Sequence[str]) -> bool:
    """An engine that is left out holds nobody up: the others are published to."""
    cores = [network.actors[name].core for name in engines]
    return all(isinstance(core, Engine) and core.version == STEPS for core in cores)


def _engine(make: MakeEngine, name: str, seed: int, incarnation: int) -> Engine:
    return make(name, Random(f"{seed}/{name}/{incarnation}"), incarnation=incarnation)


def _takes(network: Network, name: str, work: Work) -> object:
    engine = network.actors[name].core
    assert isinstance(engine, Engine)
    return engine.perform(work)


def _kill(network: Network, name: str, random: Random, loading_s: float) -> None:
    if network.actors[name].core is None:
        return
    network.kill(name, keep_sent=random.randrange)
    news = PeerRestarted(actor=name, incarnation=network.actors[name].incarnation)
    for other in network.actors:
        if other not in (name, "supervisor"):
            network.tell("supervisor", other, news)
    takes_s = random.choice((0.0, 1.0)) + (loading_s if name == "engine-1" else 0.0)
    network.call_at(network.now_s + takes_s, partial(network.start, name))


@pytest.mark.parametrize("chunk", range(4))
def test_every_run_ends_with_its_last_version_published(chunk: int) -> None:
    """No work is ordered that is already being done, and nobody waits for what died."""
    for seed in range(chunk * 40, chunk * 40 + 40):
        network = run_publications(seed)
        trainer = network.actors["trainer-0"].core
        assert isinstance(trainer, Trainer)
        assert trainer.version == STEPS
        assert trainer.publishing.published == STEPS


def test_nobody_waits_for_a_word_that_has_been_said() -> None:
    """Told of an engine's death after its next life has spoken up, a publisher would wait until it
    asks by itself; also if that word was said to a life of its own that has died since."""
    num_deaths = 0
    for seed in (*range(160), *RARE):
        network = run_publications(seed)
        num_deaths += sum(each.incarnation for each in network.actors.values())
        assert network.now_s < QUICK_S, f"seed {seed} takes {network.now_s:.1f} s"
    assert num_deaths > 200, "a fault that does not happen tests nothing"


def test_an_engine_may_take_long_to_start_again_also_if_our_predecessor_alone_knew_of_it() -> None:
    """Large models are loaded for many minutes: one does that here, the others are quick. Its
    supervisor judges how long that may take, and the run goes on."""
    num_deaths = 0
    for seed in range(160):
        network = run_publications(seed, loading_s=LOADING_S)
        slow = network.actors.get("engine-1")
        deaths = slow.incarnation if slow else 0
        num_deaths += deaths
        longest_s = deaths * LOADING_S + QUICK_S
        assert network.now_s < longest_s, f"seed {seed} takes {network.now_s:.1f} s"
    assert num_deaths > 40, "a fault that does not happen tests nothing"


def test_an_engine_that_cannot_let_go_of_what_was_staged_is_no_failure() -> None:
    """The new version serves, and is published; what is left is told, and goes with the next."""
    kept = 0
    for seed in range(40):
        network = run_publications(seed, partial(Engine, clings=0.5))
        supervisor = network.actors["supervisor"].core
        assert isinstance(supervisor, Supervisor)
        events = [each for each in supervisor.events if isinstance(each, EventReported)]
        kept += sum(each.kind == "staging_kept" for each in events)
        assert not [each.text for each in events if "refused" in each.text]
        assert network.now_s < QUICK_S, f"seed {seed} takes {network.now_s:.1f} s"
    assert kept > 40, "a fault that does not happen tests nothing"


class RefusesWhatServes(Engine):
    """Serves a version, and says that it does not."""

    def _switch(self, version: int) -> Switched:
        super()._switch(version)
        raise EpochError("what was staged is still there")


def test_the_simulator_finds_an_engine_that_refuses_what_it_serves() -> None:
    with pytest.raises(AssertionError, match="says that it serves None, and serves 0"):
        run_publications(0, RefusesWhatServes)
