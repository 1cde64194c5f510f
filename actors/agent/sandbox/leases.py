"""What outlives a process is written down in the run before it exists."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from milepost.actors.agent.processes import started
from milepost.messages.supervisor import ResourceReleased, ResourceTaken

if TYPE_CHECKING:
    from milepost.messages.bus import Bus

TELL_S: Final = 30.0
KEEPER: Final = Path(__file__).with_name("keeper.py")


class Leases(Protocol):
    """Takes down what must not outlive the run."""

    async def take(self, name: str, release: list[str], lease_s: float = 0.0) -> None:
        """Write down `name` with the command that gives it back; returns when it is written.

        Args:
            name: unique in the run.
            release: the command line; does no harm when it is gone already.
            lease_s: unless it is taken again within this time, the supervisor gives it back,
                also while the run goes on. 0: it is held as long as this process lives.

        Raises:
            Undelivered: it could not be written down, so it must not be made.
        """
        ...

    async def release(self, name: str) -> None:
        """It was given back."""
        ...


class RunLeases:
    """In the registry of the run, by its supervisor: kept also when this process is killed.

    Args:
        bus: of this actor.
        actor: its name.
    """

    def __init__(self, bus: Bus, actor: str) -> None:
        self._bus = bus
        self._actor = actor

    async def take(self, name: str, release: list[str], lease_s: float = 0.0) -> None:
        """See `Leases`."""
        taken = ResourceTaken(actor=self._actor, name=name, release=release, lease_s=lease_s)
        await self._bus.tell("supervisor", taken, deadline_s=TELL_S)

    async def release(self, name: str) -> None:
        """See `Leases`."""
        released = ResourceReleased(actor=self._actor, name=name)
        await self._bus.tell("supervisor", released, deadline_s=TELL_S)


class KeptLeases:
    """By a small process of our own, for agents outside of a run's: kept also when we are killed.

    It is started with the first lease. What was told to it is written down: it reads its pipe to
    the end, also when nobody is left who writes.
    """

    def __init__(self) -> None:
        self._keeper: Process | None = None
        self._starting = asyncio.Lock()

    async def take(self, name: str, release: list[str], lease_s: float = 0.0) -> None:
        """See `Leases`; there is no run that could outlive us, so it is held as long as we live.

        Raises:
            OSError: the keeper cannot be started, or is gone.
        """
        del lease_s
        async with self._starting:
            if self._keeper is None:
                words = (sys.executable, "-I", "-S", str(KEEPER))
                # A session of its own: what kills our group does not kill it.
                self._keeper = await started(
                    asyncio.create_subprocess_exec(*words, stdin=PIPE, start_new_session=True)
                )
        await self._tell(["take", name, release])

    async def release(self, name: str) -> None:
        """See `Leases`."""
        await self._tell(["release", name])

    async def close(self) -> None:
        """Nothing is taken any more; what was not released is given back now."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            await self._keeper.wait()

    async def _tell(self, words: list[object]) -> None:
        assert self._keeper is not None, "release before take"
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(words).encode() + b"\n")
        await self._keeper.stdin.drain()


class NoLeases:
    """Outside of a run: nobody cleans up after a process that is killed."""

    async def take(self, name: str, release: list[str], lease_s: float = 0.0) -> None:
        """Nothing."""

    async def release(self, name: str) -> None:
        """Nothing."""
