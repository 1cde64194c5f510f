"""What outlives a process is written down in the run before it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from milepost.messages.supervisor import ResourceReleased, ResourceTaken

if TYPE_CHECKING:
    from milepost.messages.bus import Bus

LEASE_S = 30.0


class Leases(Protocol):
    """Takes down what must not outlive the run."""

    async def take(self, name: str, release: list[str]) -> None:
        """Write down `name` with the command that gives it back; returns when it is written.

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

    async def take(self, name: str, release: list[str]) -> None:
        """See `Leases`."""
        taken = ResourceTaken(actor=self._actor, name=name, release=release)
        await self._bus.tell("supervisor", taken, deadline_s=LEASE_S)

    async def release(self, name: str) -> None:
        """See `Leases`."""
        released = ResourceReleased(actor=self._actor, name=name)
        await self._bus.tell("supervisor", released, deadline_s=LEASE_S)


class NoLeases:
    """Outside of a run: nobody cleans up after a process that is killed."""

    async def take(self, name: str, release: list[str]) -> None:
        """Nothing."""

    async def release(self, name: str) -> None:
        """Nothing."""
