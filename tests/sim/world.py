"""A whole run on the simulated network: real rollout, buffer, publisher and evaluator cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random

from sim.choosers import Chooser
from sim.disk import Disk
from sim.engines import Engine
from sim.exams import Exams, Offers, Slow, hand_of, has_exams
from sim.faults import NO_FAULTS, Faults, mortal_kinds
from sim.guests import GuestsDoor
from sim.hands import Hands
from sim.learners import Checkpoint, Trainer
from sim.network import Network
from sim.overseer import Supervisor
from sim.standins import Agent, Session
from sim.topologies import turn_every_of
from sim.watch import Watch

from milepost.actors.agent.run import ALIVE_SHARE
from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.marks import Fates, WentOn
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.effects import Core, Work
from milepost.actors.evaluator.core import Evaluator
from milepost.actors.evaluator.records import Past
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.actors.guests.run import evaluates
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.rollout.conversations import ConversationRollout
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.settings import RolloutSettings
from milepost.configs.topology import Topology
from milepost.messages.shared import Prompt
from milepost.messages.supervisor import Drain, PeerRestarted

PROMPTS = [
    Prompt(prompt_id=f"p{index}", messages=[{"role": "user", "content": str(index)}])
    for index in range(5)
]


@dataclass(frozen=True, slots=True)
class Variant:
    """Cores to put in the place of ours: the canaries' naive ones."""

    rollout: Callable[[RolloutSettings, PromptOrder, Ledger], Core] = Rollout.of
    buffer: Callable[[BufferSettings, Fates, Sequence[StoredGroup]], Core] = Buffer.of
    publisher: Callable[[PublisherSettings], Core] = Publisher.of
    fleet: Callable[[Publisher, PublisherSettings], Core] = FleetPublisher
    evaluator: Callable[[EvaluatorSettings, Sequence[Prompt], Past], Core] = Evaluator
    liar: str = ""
    """Engine that confirms what it does not serve."""
    stale: str = ""
    """Engine that samples over keys and values of older weights, and scores with none."""
    engine: Callable[..., Engine] = Engine
    session: Callable[..., Session] = Session
    cuts_unseen: bool = True
    """False: sessions train turns that came after the reward."""


@dataclass(slots=True)
class World:
    """One run, from its start to its end, over deaths and resumes."""

    topology: Topology
    chooser: Chooser
    faults: Faults = NO_FAULTS
    variant: Variant = field(default_factory=Variant)
    seed: int = 0
    trace: list[str] | None = None
    script: dict[int, Callable[[World], None]] = field(default_factory=dict)
    """Number of a delivery -> what happens before it."""
    disk: Disk = field(default_factory=Disk)
    network: Network = field(init=False)
    watch: Watch = field(init=False)
    exams: Exams = field(init=False)
    _supervisor: Supervisor = field(init=False)
    _needed: set[str] = field(init=False)
    """Actors that must have finished."""
    _number: int = 0
    _deaths_left: int = 0
    _resumes_left: int = 0
    _delays_left: int = 0
    _blocks_left: int = 0
    _slows_left: int = 0

    def __post_init__(self) -> None:
        self._deaths_left = self.faults.deaths
        self._blocks_left = self.faults.blocks if self.faults.block else 0
        self._slows_left = self.faults.slows if self.faults.slow else 0
        self._delays_left = self.faults.delays if self.faults.delay else 0
        self._resumes_left = self.faults.resumes
        self.watch = Watch(self.topology)
        self.exams = Exams(Random(f"{self.seed}/exams"), self.faults.failures)
        self._needed = {"trainer-0", *self.topology.names("evaluator")}
        self._begin(resume_version=None)

    # ---- making --------------------------------------------------------------------------

    def _begin(self, resume_version: int | None) -> None:
        """Start every process of the run, from what the disk holds."""
        now_s = self.network.now_s if resume_version is not None else 0.0
        self.network = network = Network(
            self.chooser,
            now_s=now_s,
            full_max=self.faults.full_max,
            refused_s=self.faults.refused_s,
            trace=self.trace,
            hands=Hands(at_once=False),
        )
        self.watch.begin(network, resume_version)
        network.on_effect = self.watch.effect
        self._add_all(network, resume_version)
        for name in network.actors:
            network.start(name)

    def _add_all(self, network: Network, resume_version: int | None) -> None:
        topology, disk = self.topology, self.disk
        self._supervisor = supervisor = Supervisor()
        network.add("supervisor", lambda _: supervisor, is_stubborn=True)
        if topology.actors.rollout:
            network.add("rollout", lambda n: self._rollout(n, resume_version), disk.rollout)
        network.add("buffer", lambda n: self._buffer(n, resume_version), disk.buffer)
        if topology.actors.publisher:
            settings = PublisherSettings.of(topology)
            network.add("publisher", lambda _: self._publisher(settings))
        if topology.actors.evaluator:
            make = partial(self._evaluator, resume_version)
            network.add("evaluator", make, self.exams.perform, hand_of=hand_of)
        for name in topology.names("agent"):
            network.add(name, partial(self._agent, name))
        for name in topology.names("guests"):
            network.add(name, partial(self._guests, name))
        for name in topology.names("session"):
            network.add(name, partial(self._session, name), is_stubborn=True)
        for name in (*topology.names("engine"), *topology.names("evaluation_engine")):
            does = partial(self._takes_weights, name)
            network.add(name, partial(self._engine, name), does, is_stubborn=True)
        for rank, name in enumerate(topology.names("trainer")):
            network.add(name, partial(self._trainer, rank), is_stubborn=True)

    def _evaluator(self, resume_version: int | None, incarnation: int) -> Core:
        settings = EvaluatorSettings.of(self.topology, resume_version, incarnation)
        past = self.exams.recover(resume_version, incarnation)
        evaluator = self.variant.evaluator(settings, PROMPTS[:3], past)
        return Slow(evaluator, self._random("exam", incarnation), self.watch.heard)

    def _session(self, name: str, incarnation: int) -> Session:
        del incarnation
        engines, fleet = (self.topology.names(k) for k in ("engine", "evaluation_engine"))
        return self.variant.session(name, engines, fleet, cuts_unseen=self.variant.cuts_unseen)

    def _publisher(self, settings: PublisherSettings) -> Core:
        training = self.variant.publisher(settings)
        if not settings.fleet or not isinstance(training, Publisher):
            return training
        return self.variant.fleet(training, settings.of_fleet(self.topology))

    def _engine(self, name: str, incarnation: int) -> Engine:
        liar, stale = name == self.variant.liar, name == self.variant.stale
        return self.variant.engine(name, self._random(name, incarnation), liar, stale, incarnation)

    def _takes_weights(self, name: str, work: Work) -> object:
        engine = self.network.actors[name].core
        assert isinstance(engine, Engine)
        return engine.perform(work)

    def _random(self, name: str, incarnation: int) -> Random:
        return Random(f"{self.seed}/{name}/{incarnation}")

    def _agent(self, name: str, incarnation: int) -> Agent:
        random = self._random(name, incarnation)
        return Agent(name, random, self.faults.failures, self.faults.impatience)

    def _guests(self, name: str, incarnation: int) -> GuestsDoor:
        rollout = self.topology.actors.rollout
        assert rollout is not None
        return GuestsDoor(
            name,
            self._random(name, incarnation),
            failures=self.faults.failures,
            alive_every_s=rollout.lease_s * ALIVE_SHARE,
            tells_evaluator=evaluates(self.topology),
        )

    def _rollout(self, incarnation: int, resume_version: int | None) -> Core:
        settings = RolloutSettings.of(self.topology, incarnation)
        order = PromptOrder(PROMPTS, self.topology.run.seed, shuffle=True)
        ledger = Ledger(checkpoints_named=settings.checkpoints_named)
        for record in self.disk.records:
            ledger.apply(record)
        if incarnation == 0:
            saved = self.disk.checkpoint
            trained = saved.trained if saved else ()
            self.disk.records += ledger.resume(resume_version or 0, trained)
            known = saved.before + len(saved.trained) if saved else 0
            assert ledger.num_trained == known, "ledger and checkpoint tell two stories"
        ledger.validate()
        if self.topology.algorithm.estimator == "sft":
            supervised = ConversationRollout.of(settings, order, ledger)
            supervised.book.written_every = 1
            return supervised
        rollout = self.variant.rollout(settings, order, ledger)
        assert isinstance(rollout, Rollout)
        rollout.book.written_every = 1
        return rollout

    def _buffer(self, incarnation: int, resume_version: int | None) -> Core:
        settings, disk = BufferSettings.of(self.topology), self.disk
        if not settings.journal:
            return self.variant.buffer(settings, Fates(version=resume_version or 0), ())
        if incarnation == 0:
            version = resume_version or 0
            disk.fates.apply(WentOn(version=version) if version else disk.fates.anew(0))
            disk.groups = {
                name: group
                for name, group in disk.groups.items()
                if version and (group.versions is None or group.versions.newest <= version)
            }
        handed = {name for each in disk.fates.handed.values() for name in each.groups}
        stored = [
            group
            for name, group in disk.groups.items()
            if name not in disk.fates.trained and name not in disk.fates.gone
        ][: settings.groups_max + len(handed)]
        return self.variant.buffer(settings, deepcopy(disk.fates), stored)

    def _trainer(self, rank: int, incarnation: int) -> Trainer:
        del incarnation
        topology, saved = self.topology, self.disk.checkpoint
        config = topology.actors.trainer
        assert config is not None
        trainer = Trainer(
            rank=rank,
            world_size=config.ranks,
            steps=topology.run.steps,
            sync=topology.run.mode == "sync",
            publish_every=config.publish_every_steps,
            checkpoint_every=topology.run.checkpoint_every_steps,
            has_publisher=topology.actors.publisher is not None,
            save=self._save,
            on_batch=self.watch.batch,
            is_joined=self.watch.is_joined,
            step_s=self.faults.step_s,
            turn_every=turn_every_of(topology),
            staleness_max=self._door_limit(),
            offers=Offers("evaluator" if has_exams(topology) and rank == 0 else ""),
        )
        if saved is not None:
            trainer.version = saved.version
            trainer.trained.num_before = saved.before
            trainer.trained.add(saved.version, saved.trained)
        return trainer

    def _door_limit(self) -> int | None:
        """What the trainer's door refuses; with several ranks they would have to agree first."""
        buffer, trainer = self.topology.actors.buffer, self.topology.actors.trainer
        assert buffer is not None
        assert trainer is not None
        corrects = BufferSettings.of(self.topology).late == "correct"
        return None if corrects or trainer.ranks > 1 else buffer.max_weight_staleness

    def _save(self, checkpoint: Checkpoint) -> None:
        self.disk.checkpoint, self.exams.folder = checkpoint, str(checkpoint.version)
        self.watch.saved(checkpoint.version)

    # ---- running -------------------------------------------------------------------------

    def run(self, steps_max: int = 40_000) -> World:
        """Until every actor that finishes a run has; raises what went wrong."""
        for _ in range(steps_max):
            if self._is_over:
                rollout = self.network.actors["rollout"].core
                ledger = rollout.book.ledger if isinstance(rollout, Rollout) else None
                self.watch.ended(self.disk, ledger, self._supervisor.problems)
                return self
            if not self._advance():
                break
        raise AssertionError(f"the run does not end: {self.stuck()}")

    def advance(self) -> bool:
        """One delivery, after whatever goes wrong before it; False when nothing is left to do."""
        return self._is_over or self._advance()

    def _advance(self) -> bool:
        if self._number in self.script:
            self.script[self._number](self)
        self._number += 1
        if self.faults is not NO_FAULTS:
            self._misbehave()
        return self.network.step()

    @property
    def _is_over(self) -> bool:
        return self._supervisor.finished >= self._needed

    def stuck(self) -> str:
        """What everybody waits for."""
        return "; ".join(
            f"{name}: {actor.core.working_on()}"
            for name, actor in self.network.actors.items()
            if actor.core is not None and actor.core.working_on()
        )

    def _misbehave(self) -> None:
        faults, chooser, network = self.faults, self.chooser, self.network
        if self._delays_left and chooser.chance(faults.delay):
            self._delays_left -= 1
            network.jump(faults.delay_s)
        if self._blocks_left and chooser.chance(faults.block):
            self._blocks_left -= 1
            pairs = sorted(network.links.by_pair)
            if pairs:
                pair = pairs[chooser.pick(len(pairs))]
                network.blocked[pair] = network.now_s + faults.block_s
        if self._slows_left and chooser.chance(faults.slow):
            self._slows_left -= 1
            names = sorted(network.actors)
            network.deaf[names[chooser.pick(len(names))]] = network.now_s + faults.slow_s
        if self._deaths_left and chooser.chance(faults.death):
            kinds = mortal_kinds(faults, self.topology)
            mortals = [
                name
                for name, actor in network.actors.items()
                if name.partition("-")[0].removeprefix("evaluation_") in kinds and actor.core
            ]
            if mortals:
                self._deaths_left -= 1
                self.kill(mortals[chooser.pick(len(mortals))])
        if self._resumes_left and chooser.chance(faults.resume):
            self._resumes_left -= 1
            self.resume()

    def resume(self) -> None:
        """Every process is killed at once, and the run goes on from its last checkpoint."""
        saved = self.disk.checkpoint
        self._begin(resume_version=saved.version if saved else 0)

    def drain(self) -> None:
        """Ctrl-C once: everybody finishes or hands over what is in flight, and says so."""
        for name, actor in self.network.actors.items():
            if name != "supervisor" and actor.core is not None:
                self.network.ask("supervisor", name, Drain(deadline_s=30.0))

    def kill(self, name: str) -> None:
        """One process is killed, and started again a while later."""
        network = self.network
        network.kill(name, keep_sent=self.chooser.pick)
        news = PeerRestarted(actor=name, incarnation=network.actors[name].incarnation)
        for other in network.actors:
            if other not in (name, "supervisor"):
                network.tell("supervisor", other, news)
        network.call_at(network.now_s + self.faults.restart_s, lambda: network.start(name))
