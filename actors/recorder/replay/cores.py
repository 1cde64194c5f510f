"""The core of a recorded actor, in the state in which its life began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from milepost.actors.effects import Received
from milepost.actors.recorder.replay.tape import ReplayRefused

if TYPE_CHECKING:
    from milepost.actors.effects import Core, Effect, Event
    from milepost.configs.spec import ActorSpec


def make_core(spec: ActorSpec) -> Core:
    """The core that `run` of this actor makes.

    Raises:
        ReplayRefused: its first state, or what it is told, is not in a recording.
    """
    match spec.kind:
        case "agent":
            from milepost.actors.agent.run import make_core as agent

            return agent(spec)
        case "guests":
            from milepost.actors.guests.run import make_core as guests

            return guests(spec)
        case "publisher":
            from milepost.actors.publisher.run import make_core as publisher

            return publisher(spec)
        case "evaluator":
            return _evaluator(spec)
        case "session":
            return _session(spec)
        case "buffer":
            return _buffer(spec)
        case "rollout":
            return _rollout(spec)
        case "engine" | "evaluation_engine":
            raise ReplayRefused("what an engine decides rests on its backend, which is no core")
        case kind:
            raise ReplayRefused(f"actors of kind {kind!r} are not replayed")


def _session(spec: ActorSpec) -> Core:
    from milepost.actors.session.run import load_renderer, make_core

    model, config = spec.topology.model, spec.topology.actors.session
    assert model is not None, "a topology with sessions has a model"
    assert config is not None, "this is a session actor"
    if config.http is not None:
        raise ReplayRefused(
            "its HTTP door hands requests to the core in ways that are not recorded; "
            "record a run without [actors.session.http]"
        )
    return make_core(spec, load_renderer(model, config))[1]


def _evaluator(spec: ActorSpec) -> Core:
    from milepost.actors.evaluator.records import Past
    from milepost.actors.evaluator.run import make_core

    _refuse_recovered(spec)
    return make_core(spec, Past(began=0))[0]


def _buffer(spec: ActorSpec) -> Core:
    from milepost.actors.buffer.core import Buffer
    from milepost.actors.buffer.marks import Fates
    from milepost.actors.buffer.settings import BufferSettings

    _refuse_recovered(spec)
    settings = BufferSettings.of(spec.topology)
    return _AsArchived(Buffer.of(settings, Fates(settings.checkpoints_named), ()))


@dataclass(frozen=True, slots=True)
class _AsArchived:
    """The buffer behind its archive, which keeps the conversations of rows to itself."""

    core: Core

    def start(self, now_s: float) -> list[Effect]:
        return self.core.start(now_s)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        from milepost.actors.buffer.archivist import without_conversations

        bare = without_conversations(event)[0] if isinstance(event, Received) else event
        return self.core.handle(bare, now_s)

    def validate(self) -> None:
        self.core.validate()

    def statistics(self) -> dict[str, object]:
        return self.core.statistics()

    def working_on(self) -> str:
        return self.core.working_on()


def _rollout(spec: ActorSpec) -> Core:
    from milepost.actors.rollout.ledger import Ledger
    from milepost.actors.rollout.run import make_core, read_prompts

    _refuse_recovered(spec)
    settings, order = read_prompts(spec)
    ledger = Ledger(checkpoints_named=settings.checkpoints_named)
    ledger.resume(0, ())
    return make_core(spec, settings, order, ledger)


def _refuse_recovered(spec: ActorSpec) -> None:
    if spec.incarnation or spec.resume_step:
        raise ReplayRefused(
            f"this life of {spec.actor} began with what it read from its journal, and that is not "
            f"recorded: only the first life of a fresh run is replayed"
        )
