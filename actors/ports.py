"""A port that an actor has bound by itself is told to the supervisor before anybody comes in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from milepost.messages.supervisor import PortOpened

if TYPE_CHECKING:
    from milepost.messages.bus import Bus

TELL_S: Final = 30.0


async def own_port(bus: Bus, actor: str, endpoint: str, descriptor: int) -> None:
    """Have the supervisor write it into the registry of what the run owns.

    Args:
        bus: of this actor.
        actor: its name.
        endpoint: as clients reach it, `tcp://HOST:PORT` or `http://HOST:PORT`.
        descriptor: of the bound socket.

    Raises:
        Undelivered: the supervisor did not take it; nobody may come in.
    """
    opened = PortOpened(actor=actor, endpoint=endpoint, inode=os.fstat(descriptor).st_ino)
    await bus.tell("supervisor", opened, deadline_s=TELL_S)
