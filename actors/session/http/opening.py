"""Opens the HTTP door of a session actor, and closes it."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milepost.actors.ports import own_port
from milepost.actors.session.addresses import Addresses
from milepost.actors.session.http.door import Door, DooredCore
from milepost.actors.session.http.lifecycle import FreeSessions, Lifecycle
from milepost.actors.session.http.models import Models
from milepost.actors.session.http.server import HttpServer, bind
from milepost.actors.session.http.service import Chats
from milepost.messages.shared import EpisodeLimits, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from milepost.actors.context import ActorContext
    from milepost.actors.session.core import SessionCore
    from milepost.actors.session.desk import Desk
    from milepost.configs.topology import Topology

SECRET_BYTES = 32


@asynccontextmanager
async def http_door(
    context: ActorContext,
    core: SessionCore,
    desk: Desk,
    aside: Callable[[Callable[[], Any]], Awaitable[Any]],
) -> AsyncIterator[DooredCore]:
    """The core with its door open; `desk.addresses` tells sessions their address from now on.

    Args:
        context: of the actor.
        core: behind the door.
        desk: of the core.
        aside: calls a function in a thread.

    Raises:
        OSError: nothing can listen there, or the key file cannot be read.
        Undelivered: the port could not be written down.
    """
    session = context.topology.actors.session
    assert session is not None, "this is a session actor"
    config = session.http
    assert config is not None, "the topology has no [actors.session.http]"
    model = context.topology.model
    assert model is not None, "a topology with sessions has a model"
    listener, base_url = bind(config, context.index)
    await own_port(context.bus, context.name, base_url, listener.fileno())
    desk.addresses = Addresses(base_url, secrets.token_bytes(SECRET_BYTES))
    door = Door(core, context.feed)
    models = Models(model.folder.name, desk.adapters)
    chats = Chats(door, session.template_options, config.dropped_fields, models)
    key = _read_key(config.key_file)
    free = FreeSessions(
        allowed=config.free_sessions,
        key=key,
        sampling=_sampling(context.topology, context.seed("free sessions")),
        limits=_limits(context.topology),
    )
    lifecycle = Lifecycle(
        door,
        chats,
        desk.renderer,
        desk.rules.leaves,
        models=models,
        free=free,
        aside=aside,
    )
    server = HttpServer(config, door, chats, lifecycle)
    await server.open(listener)
    try:
        yield DooredCore(core, door)
    finally:
        await server.close()


def _read_key(file: str) -> str:
    return Path(file).read_text(encoding="utf-8").strip() if file else ""


def _sampling(topology: Topology, seed: int) -> SamplingParams:
    sampling, limits = topology.sampling, topology.limits
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        tokens_max=limits.reply_tokens_max,
        seed=seed,
    )


def _limits(topology: Topology) -> EpisodeLimits:
    limits = topology.limits
    return EpisodeLimits(
        turns_max=limits.turns_max,
        seconds_max=limits.seconds_max,
        reply_tokens_max=limits.reply_tokens_max,
        tokens_max=limits.tokens_max,
    )
