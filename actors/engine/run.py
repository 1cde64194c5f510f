"""Wires the engine's core to its backend."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final

from milepost.actors.context import ActorContext
from milepost.actors.effects import Effect, Event
from milepost.actors.engine.core import Engine
from milepost.actors.engine.interface import Backend, Order
from milepost.actors.engine.receiving import Receiver
from milepost.configs.actors import EngineConfig
from milepost.configs.topology import Topology

EVALUATION_ENGINE: Final = "evaluation_engine"


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        UnsupportedModelError: the checkpoint's architecture is not computed.
        ActorFailed: the backend failed.
    """
    topology = context.topology
    requests_max = config_of(topology, context.spec.kind).requests_max
    # Importing torch and reading the checkpoint take seconds; heartbeats go on meanwhile.
    backend = await asyncio.to_thread(make_backend, context)
    try:
        publisher = "".join(topology.names("publisher"))
        core = Engine(
            context.name,
            publisher,
            backend.facts,
            requests_max,
            incarnation=context.spec.incarnation,
        )
        wired = Wired(core, backend)
        backend.start(context.inject)
        await context.serve(wired, facts=backend.facts.details, perform=backend.perform)
    finally:
        backend.close()


def make_backend(context: ActorContext) -> Backend:
    """The backend that `actors.engine.kind` names; blocks until it could serve."""
    topology = context.topology
    config, model = config_of(topology, context.spec.kind), topology.model
    assert model is not None, "the topology has no [model]"
    receiver = make_receiver(topology, context.run_folder, context.spec.kind)
    match config.kind:
        case "embedded":
            from milepost.actors.engine.embedded.backend import EmbeddedBackend

            return EmbeddedBackend(
                model.folder,
                config,
                dtype=model.dtype,
                context_tokens=model.context_tokens_max,
                receiver=receiver,
                keeps_routes=keeps_routes(topology, context.spec.kind),
            )
        case "sglang":
            from milepost.actors.engine.sglang.backend import SGLangBackend
            from milepost.actors.engine.sglang.launch import Place
            from milepost.actors.engine.sglang.started import Needs, start

            place = Place(
                name=context.name,
                index=context.index,
                run_folder=context.run_folder,
                seed=context.seed("server"),
                token=f"{context.spec.run_id}/{context.name}/{context.spec.incarnation}",
                deadline_s=topology.system.timeouts.ready_s,
            )
            publisher, sampling = topology.actors.publisher, topology.sampling
            needs = Needs(
                dtype=model.dtype,
                context_tokens=model.context_tokens_max,
                pause=publisher.pause if publisher is not None else "",
                is_cut=sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0,
                routes=keeps_routes(topology, context.spec.kind),
            )
            started = start(model.folder, config, place, needs)
            return SGLangBackend(started, receiver)


def keeps_routes(topology: Topology, kind: str) -> bool:
    """Whether engines of this kind note routes: nothing of the evaluator's own is trained."""
    return topology.algorithm.replay_routes and kind != EVALUATION_ENGINE


def config_of(topology: Topology, kind: str) -> EngineConfig:
    """The table of this kind of engine: those of the rollout, or those of the evaluator."""
    actors = topology.actors
    config = actors.evaluation_engine if kind == EVALUATION_ENGINE else actors.engine
    assert config is not None, f"the topology has no [actors.{kind}]"
    return config


def make_receiver(topology: Topology, run_folder: Path, kind: str) -> Receiver:
    """What takes whole versions in, from a disk or out of a broadcast.

    Engines of the evaluator have copies of their own: theirs stay on the version being measured.
    """
    model, publisher = topology.model, topology.actors.publisher
    assert model is not None, "the topology has no [model]"
    local = publisher.delta.local_folder if publisher else ""
    folder = Path(local) if local else run_folder / "weights_local" / socket.gethostname()
    if kind == EVALUATION_ENGINE:
        folder = folder.with_name(f"{folder.name}-evaluation")
    return Receiver(
        folder,
        baseline=model.folder,
        device=config_of(topology, kind).device,
        patch_threads=publisher.delta.workers if publisher else 1,
    )


class Wired:
    """A core whose orders go straight to the backend; everything else is the shell's.

    An order needs no task and no answer of its own: its outcome comes with all others of a step.
    """

    def __init__(self, core: Engine, backend: Backend) -> None:
        self._core, self._backend = core, backend

    def start(self, now_s: float) -> list[Effect]:
        """As the core's."""
        return self._split(self._core.start(now_s))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """As the core's."""
        return self._split(self._core.handle(event, now_s))

    def validate(self) -> None:
        """As the core's."""
        self._core.validate()

    def statistics(self) -> dict[str, object]:
        """The core's and the backend's; and what was sampled and told nobody yet."""
        told = self._core.statistics()
        found = {**told, **self._backend.statistics()}
        sampled, answered = found.get("generated_tokens", 0), told["tokens_answered"]
        assert isinstance(sampled, int)
        assert isinstance(answered, int)
        return {**found, "tokens_at_risk": max(0, sampled - answered)}

    def working_on(self) -> str:
        """As the core's."""
        return self._core.working_on()

    def _split(self, effects: list[Effect]) -> list[Effect]:
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Order):
                self._backend.order(effect)
            else:
                others.append(effect)
        return others
