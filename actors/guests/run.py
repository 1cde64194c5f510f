"""The I/O of the guests' door: an agent host whose episodes are run by others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

from milepost.actors.agent.core import AgentCore, AwaitRoom, SayGoodbye
from milepost.actors.agent.episodes import Episodes
from milepost.actors.agent.run import ALIVE_SHARE, open_rewards, teller
from milepost.actors.guests.door import LIMITS, Door, GuestHost
from milepost.actors.guests.invitation import Doorway, open_doorway
from milepost.actors.guests.lobby import Lobby
from milepost.actors.ports import own_port
from milepost.messages.bus import Bus
from milepost.messages.bus.address import ipc_path
from milepost.messages.guests import Goodbye

if TYPE_CHECKING:
    from milepost.actors.context import ActorContext
    from milepost.actors.effects import Work
    from milepost.configs.spec import ActorSpec
    from milepost.configs.topology import Topology

DOOR: Final = "guests-door"
"""Name of the guests' mailbox; not the one that the run's own actors use."""
HEARTBEAT_SHARE: Final = 0.25
"""Of `silence_s`: how often a guest has something to answer, so that silence is no accident."""


async def run(context: ActorContext) -> None:
    """Open the door until the supervisor stops this process.

    Raises:
        InvitationError: the address cannot be listened on.
        RewardFailed: the reward function cannot be loaded.
        Undelivered: the port could not be written down.
    """
    topology, config = context.topology, context.topology.actors.guests
    assert config is not None, "this is the guests' door"
    data = topology.data
    doorway = open_doorway(
        config.listen,
        Path(ipc_path(context.spec.addresses["supervisor"].endpoint)).parent,
        context.spec.run_id,
        context.run_folder / ".milepost",
    )
    if doorway.listen_fd >= 0:
        endpoint = doorway.invitation.endpoint
        await own_port(context.bus, context.name, endpoint, doorway.listen_fd)
    lobby = Lobby(
        guests_max=config.guests_max,
        episodes_max=config.episodes_max,
        silence_s=config.silence_s,
        heartbeat_s=config.silence_s * HEARTBEAT_SHARE,
    )
    door = Door(
        await _open_bus(doorway, context),
        lobby,
        heartbeat_s=config.silence_s * HEARTBEAT_SHARE,
        silence_s=config.silence_s,
        data_options=data.options if data else {},
        takes_parallel=topology.actors.session is not None
        and topology.actors.session.history == "tree",
    )
    core = make_core(context.spec)
    facts: dict[str, object] = {"listens": doorway.invitation.endpoint}
    answering = asyncio.create_task(door.serve(), name="guests")
    try:
        async with open_rewards(topology, config.reward_workers, teller(context)) as rewards:
            episodes = Episodes(GuestHost(door), context.bus, rewards)

            async def perform(work: Work) -> object:
                match work:
                    case AwaitRoom(room=room):
                        return await door.room_other_than(room)
                    case SayGoodbye(news=news):
                        goodbye = Goodbye(status=news.status, reason=news.reason)
                        door.say_goodbye(goodbye)
                        return None
                    case _:
                        return await episodes.perform(work)

            serving = asyncio.create_task(
                context.serve(core, facts=facts, perform=perform), name="serve"
            )
            # A door that answers nobody any more must not look like one that has no guests.
            await asyncio.wait({serving, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            else:
                await serving
    finally:
        await door.close()
        await answering


def make_core(spec: ActorSpec) -> AgentCore:
    """The core in its first state."""
    config, rollout = spec.topology.actors.guests, spec.topology.actors.rollout
    assert config is not None, "this is the guests' door"
    return AgentCore(
        spec.actor,
        episodes_max=config.episodes_max,
        alive_every_s=rollout.lease_s * ALIVE_SHARE if rollout else None,
        has_fixed_room=False,
        tell_room_to=("evaluator",) if evaluates(spec.topology) else (),
    )


def evaluates(topology: Topology) -> bool:
    """Whether the run's evaluator has nobody but guests to play."""
    return topology.actors.evaluator is not None and topology.actors.agent is None


async def _open_bus(doorway: Doorway, context: ActorContext) -> Bus:
    invitation = doorway.invitation
    return await Bus.open(
        name=DOOR,
        incarnation=context.spec.incarnation,
        run_id=context.spec.run_id,
        addresses={DOOR: doorway.address},
        limits=LIMITS,
        secret_key=doorway.door_secret_key,
        client_keys=[invitation.public_key] if invitation.public_key else [],
        listen_fd=doorway.listen_fd,
    )
