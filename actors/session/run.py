"""The I/O of a session actor: loads tokenizer and template, lends threads to the core."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from milepost.actors import collector
from milepost.actors.engine.embedded.shape import read_shape
from milepost.actors.session.assembly import RowRules
from milepost.actors.session.core import SessionCore
from milepost.actors.session.desk import Desk
from milepost.actors.session.engines import EnginePool
from milepost.actors.session.history import LinearHistory
from milepost.actors.session.leaves import LeafRules
from milepost.actors.session.matchers import resolve_matcher
from milepost.actors.session.record import LinearRecord
from milepost.actors.session.text.canonical import Canon
from milepost.actors.session.text.proof import make_renderer, prove
from milepost.actors.session.text.template import RenderFailed
from milepost.actors.session.tree import TreeRecord
from milepost.actors.session.work import TextWork

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from milepost.actors.context import ActorContext
    from milepost.actors.effects import Work
    from milepost.actors.session.record import Record
    from milepost.actors.session.text.rendering import Renderer
    from milepost.configs.actors import SessionConfig
    from milepost.configs.run import ModelConfig
    from milepost.configs.spec import ActorSpec
    from milepost.configs.topology import Topology

SWITCH_INTERVAL_S = 0.0005
"""How long a text thread may keep the interpreter while the event loop wants it."""


async def run(context: ActorContext) -> None:
    """Serve conversations until the supervisor stops this process.

    Raises:
        FileNotFoundError: the model folder has no tokenizer.
        RenderFailed: its chat template is missing, broken, or not append-only.
        UnknownFamily: the family does not fit the tokenizer.
        OSError: the HTTP door cannot be opened.
    """
    model, config = context.topology.model, context.topology.actors.session
    assert model is not None, "a topology with sessions has a model"
    assert config is not None, "this is a session actor"
    # One thread for each text: the tokenizer's own pool would fight the other processes for cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    renderer = load_renderer(model, config)
    desk, core = make_core(context.spec, renderer)
    facts = {
        "family": renderer.family.name,
        "family_verified": renderer.family.verified,
        "tokenizer_hash": renderer.tokenizer.content_hash,
        "template_hash": renderer.template.content_hash,
        "vocabulary_size": renderer.tokenizer.vocabulary_size,
    }
    threads = ThreadPoolExecutor(config.render_workers or 1, thread_name_prefix="text")
    loop = asyncio.get_running_loop()

    async def perform(work: Work) -> object:
        assert isinstance(work, get_args(TextWork)), f"{context.name} has no hands for {work}"
        if not config.render_workers:
            return work.carry_out(renderer)
        return await loop.run_in_executor(threads, work.carry_out, renderer)

    async def aside(function: Callable[[], Any]) -> Any:
        return await loop.run_in_executor(threads, function)

    try:
        if config.http is None:
            settle_memory()
            await context.serve(core, facts=facts, perform=perform)
            return
        from milepost.actors.session.http.opening import http_door

        async with http_door(context, core, desk, aside) as doored:
            assert desk.addresses is not None, "an open door has an address"
            facts["http"] = desk.addresses.base_url
            settle_memory()
            await context.serve(doored, facts=facts, perform=perform)
    finally:
        threads.shutdown(cancel_futures=True)


def make_core(spec: ActorSpec, renderer: Renderer) -> tuple[Desk, SessionCore]:
    """The core in its first state, and what it shares with its door."""
    topology = spec.topology
    model, config = topology.model, topology.actors.session
    assert model is not None, "a topology with sessions has a model"
    assert config is not None, "this is a session actor"
    desk = Desk(
        name=spec.actor,
        renderer=renderer,
        pool=EnginePool(topology.names("engine"), spec.index, topology.names("evaluation_engine")),
        context_tokens_max=model.context_tokens_max,
        patience_s=config.engine_patience_s,
        routes=read_shape(model.folder).routes if topology.algorithm.replay_routes else None,
        adapters=adapters_of(topology),
        rules=replace(row_rules(config), writes_conversations=topology.archive.keeps_conversations),
    )
    return desk, SessionCore(
        desk, new_record=record_maker(config), sessions_max=config.sessions_max
    )


def adapters_of(topology: Topology) -> tuple[str, ...]:
    """Names that sessions without training may sample under: those of the engines they go to."""
    fleet = topology.actors.evaluation_engine or topology.actors.engine
    return tuple(sorted(fleet.sglang.adapters)) if fleet is not None else ()


def record_maker(config: SessionConfig) -> Callable[[Collection[str]], Record]:
    """Makes empty records of the kind that `[actors.session]` asks for, given appended roles.

    Raises:
        ValueError: the matcher is not known.
    """
    matcher = resolve_matcher(config.matcher)
    tree = config.tree

    def linear(roles: Collection[str]) -> Record:
        return LinearRecord(LinearHistory(matcher, roles))

    def branching(roles: Collection[str]) -> Record:
        return TreeRecord(
            matcher,
            roles,
            nodes_max=tree.nodes_max,
            tokens_max=tree.tokens_max,
            keeps_retries=tree.leaf_picker != "drop_retries",
        )

    return linear if config.history == "linear" else branching


def row_rules(config: SessionConfig) -> RowRules:
    """How finished sessions become rows.

    Raises:
        ValueError: a leaf hook is not known.
    """
    tree = config.tree
    return RowRules(LeafRules(tree.leaf_picker, tree.leaf_post_processor))


def load_renderer(model: ModelConfig, config: SessionConfig) -> Renderer:
    """Tokenizer, template and family of the run's model, proven to append only.

    Raises:
        As `run`.
    """
    renderer = make_renderer(model.folder, model.family, config.template_options)
    findings = list(prove(renderer))
    renderer.canon = Canon(renderer, appends_only=not findings)
    if faults := [each for each in findings if each.is_fault]:
        raise RenderFailed(f"family {model.family} does not fit the chat template: {faults[0]}")
    return renderer


def settle_memory() -> None:
    """What start-up made stays.

    What reading the tokenizer's file took is given back: with Qwen3's, 55 of 147 MiB.
    """
    collector.settles()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # another C library than glibc gives back by itself, or never
        trim(0)
