"""The I/O of an agent actor: makes the user's agent, its reward function, and runs episodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from milepost.actors.agent.agent import Agent
from milepost.actors.agent.core import AgentCore
from milepost.actors.agent.episodes import Episodes, Rewards
from milepost.actors.agent.reward import is_async, resolve_reward
from milepost.actors.agent.reward_pool import RewardPool
from milepost.actors.agent.sandbox.leases import RunLeases
from milepost.messages.bus import Undelivered
from milepost.messages.supervisor import EventReported

if TYPE_CHECKING:
    from milepost.actors.context import ActorContext
    from milepost.configs.spec import ActorSpec
    from milepost.configs.topology import Topology

ALIVE_SHARE = 0.25
"""Of the rollout actor's lease: how often it hears that episodes go on."""
TELL_S = 30.0

log = logging.getLogger(__name__)


async def run(context: ActorContext) -> None:
    """Run episodes until the supervisor stops this process.

    Raises:
        AgentError: the class cannot be made.
        RewardFailed: the reward function cannot be loaded.
    """
    topology, config = context.topology, context.topology.actors.agent
    assert config is not None, "this is an agent actor"
    data_options = topology.data.options if topology.data else {}
    agent = make_agent(config.agent, config.options, data_options)
    agent.leases = RunLeases(context.bus, context.name)
    core = make_core(context.spec)
    async with open_rewards(topology, config.reward_workers, teller(context)) as rewards:
        await agent.start()
        try:
            episodes = Episodes(agent, context.bus, rewards)
            facts: dict[str, object] = {"agent": config.agent, "episodes_max": config.episodes_max}
            await context.serve(core, facts=facts, perform=episodes.perform)
        finally:
            await agent.stop()


def make_core(spec: ActorSpec) -> AgentCore:
    """The core in its first state."""
    topology = spec.topology
    config, rollout = topology.actors.agent, topology.actors.rollout
    assert config is not None, "this is an agent actor"
    return AgentCore(
        spec.actor,
        episodes_max=config.episodes_max,
        alive_every_s=rollout.lease_s * ALIVE_SHARE if rollout else None,
    )


class AgentError(ValueError):
    """The agent's class cannot be found or made; says which and why."""


def make_agent(path: str, options: dict[str, Any], data_options: dict[str, Any]) -> Agent:
    """The user's agent.

    Args:
        path: `module:Class`.
        options: keyword arguments of the class.
        data_options: set as `data_options` before anything runs.

    Raises:
        AgentError: there is no such class, it is no `Agent`, or it refuses its options.
        ImportError: the module cannot be imported.
    """
    module, colon, name = path.partition(":")
    found = getattr(import_module(module), name, None) if colon else None
    if not isinstance(found, type) or not issubclass(found, Agent):
        raise AgentError(
            f"agent {path!r} at $.actors.agent.agent is no subclass of milepost.actors.agent.Agent;"
            " write module:Class"
        )
    try:
        agent = found(**options)
    except TypeError as error:
        raise AgentError(f"agent {path!r} refuses its options {options}: {error}") from error
    agent.data_options = data_options
    return agent


def teller(context: ActorContext) -> Callable[[str], None]:
    """Says how the reward workers do in the log and among the run's events."""

    def tell(text: str) -> None:
        log.warning("%s", text)
        event = EventReported(source=context.name, kind="reward_workers", text=text)
        told = context.bus.tell("supervisor", event, deadline_s=TELL_S)
        told.add_done_callback(_log_untold)

    return tell


def _log_untold(told: asyncio.Future[None]) -> None:
    if not told.cancelled() and isinstance(error := told.exception(), Undelivered):
        log.warning("the supervisor does not know that: %s", error)


@contextlib.asynccontextmanager
async def open_rewards(
    topology: Topology, workers: int, tell: Callable[[str], None] = log.warning
) -> AsyncIterator[Rewards]:
    """The run's reward function, with its worker processes as long as the block lasts.

    Args:
        topology: names it, and its deadline.
        workers: processes of a synchronous one.
        tell: told in words when no process comes up any more, and when one does again.

    Raises:
        RewardFailed: it cannot be loaded.
    """
    data = topology.data
    if data is None or not data.reward:
        yield Rewards(None, None, 0.0)
        return
    function = resolve_reward(data.reward)
    if is_async(function):
        yield Rewards(function, None, data.reward_deadline_s)
        return
    pool = RewardPool(
        data.reward,
        workers=workers,
        deadline_s=data.reward_deadline_s,
        start_s=topology.system.timeouts.hello_s,
        tell=tell,
    )
    try:
        await pool.start()
        yield Rewards(None, pool, data.reward_deadline_s)
    finally:
        await pool.close()
