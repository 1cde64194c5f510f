"""Buses over either transport, for the contract suite and the tests with faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from milepost.configs.spec import Address
from milepost.messages.bus import Bus, BusClosed, BusLimits, Incoming
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.bus.transport import Transport
from milepost.messages.bus.zeromq import ZmqTransport
from milepost.messages.engine import EpochAnswer

T = TypeVar("T")

NAMES = ("a", "b", "c")
LIMITS = BusLimits(probe_s=0.05)
RUN_ID = f"test-{os.getpid()}"
"""Tests of other processes have shared memory beside ours."""


def numbered(number: int) -> EpochAnswer:
    return EpochAnswer(version=number, ok=True)


def number_of(incoming: Incoming) -> int:
    assert isinstance(incoming.message, EpochAnswer)
    return incoming.message.version


class World:
    """Up to three buses that can reach each other, over `memory` or `zeromq`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.network = MemoryNetwork(NAMES)
        self.addresses = {name: Address(endpoint=f"ipc://{folder}/{name}") for name in NAMES}
        self.open: list[Bus] = []

    async def bus(
        self,
        name: str,
        *,
        incarnation: int = 0,
        limits: BusLimits = LIMITS,
        run_id: str = RUN_ID,
    ) -> Bus:
        """A running bus."""
        transport: Transport
        if self.kind == "memory":
            transport = self.network.transport(name)
        else:
            transport = ZmqTransport(name, incarnation, self.addresses, limits)
        bus = await Bus.over(
            transport, name=name, incarnation=incarnation, run_id=run_id, limits=limits
        )
        self.open.append(bus)
        return bus

    async def kill(self, bus: Bus) -> None:
        """End it as a crash does: nothing it holds is sent any more."""
        self.open.remove(bus)
        bus._closed = "killed"
        await bus._host.transport.close(0)
        bus._links.fail_all("killed")
        bus._alarm.cancel()
        bus._returning.close()
        bus._on_arrival()
        bus._packing.close()

    async def close(self) -> None:
        """Close whatever is still open."""
        for bus in self.open:
            await bus.close(deadline_s=0.05)


def collect(bus: Bus, into: list[Incoming]) -> asyncio.Task[None]:
    """A task that takes everything."""

    return serve(bus, into.append)


def serve(bus: Bus, answer: Callable[[Incoming], None]) -> asyncio.Task[None]:
    """A task that takes everything and lets `answer` reply."""

    async def take() -> None:
        with contextlib.suppress(BusClosed):
            while True:
                answer(await bus.receive())

    return asyncio.create_task(take())


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these tasks and wait until they are gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool], what: str, deadline_s: float = 5.0) -> None:
    """Let the loop turn until `condition` holds.

    Raises:
        AssertionError: not within the deadline.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + deadline_s
    while not condition():
        assert loop.time() < give_up, f"waited {deadline_s} s for {what}"
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.001, turn.set_result, None)
        await turn


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where a loop would wait for a timer, time jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when everything is idle."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()
