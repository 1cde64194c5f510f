"""The clients' door: what goes wrong with one question costs nobody but its asker."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.messages.bus import Bus, BusLimits
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    ActorStacksRequested,
    Refused,
    Snapshot,
    SnapshotRequested,
    Stacks,
)
from milepost.supervisor.asking import Asking
from milepost.supervisor.attach import Door, PassedOn

LIMITS = BusLimits(probe_s=60, body_bytes_max=1 << 16)
LONG_S = 60.0
"""Nobody waits so long: a question that fails is answered at once."""


class BrokenDesk:
    """A supervisor that knows no snapshot the first time, and no stacks that fit."""

    def __init__(self) -> None:
        self.stacks: list[Message | Exception] = []
        self.snapshots = [Snapshot(run={}, actors=[], events=[], last_metrics={})]
        self.is_broken = True

    def snapshot(self) -> Snapshot:
        if self.is_broken:
            raise KeyError("phase")
        return self.snapshots[0]

    def request_stop(self, reason: str, *, at_once: bool) -> str:
        raise NotImplementedError

    def ask_stacks(self, actor: str) -> asyncio.Future[Message]:
        del actor
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        match self.stacks.pop(0):
            case Exception() as error:
                future.set_exception(error)
            case message:
                future.set_result(message)
        return future

    def pass_on(self, wanted: PassedOn) -> asyncio.Future[Message]:
        raise NotImplementedError

    def actor_names(self) -> tuple[str, ...]:
        return ()


@asynccontextmanager
async def talking(desk: BrokenDesk) -> AsyncIterator[Bus]:
    """A client of a door."""
    network = MemoryNetwork(("attach", "client"))
    door_bus, client = [
        await Bus.over(
            network.transport(name), name=name, incarnation=0, run_id="run", limits=LIMITS
        )
        for name in ("attach", "client")
    ]
    door = Door(door_bus, desk, Path())
    yield client
    await client.close(deadline_s=0.05)
    await door.close()


async def ask(client: Bus, message: Message) -> Message:
    return (await client.ask("attach", message, deadline_s=LONG_S)).message


async def test_a_snapshot_that_fails_is_refused_and_the_next_one_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever answers clients must not end with the first of them, and without a word."""
    desk = BrokenDesk()
    async with talking(desk) as client:
        with caplog.at_level(logging.ERROR):
            refused = await ask(client, SnapshotRequested())
        assert refused == Refused(
            reason="the supervisor failed at SnapshotRequested: KeyError: 'phase'"
        )
        assert "SnapshotRequested of client could not be answered" in caplog.text
        desk.is_broken = False
        assert await ask(client, SnapshotRequested()) == desk.snapshots[0]


async def test_what_an_actor_was_asked_fails_for_its_asker_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception that nobody waits for ends a run: no client's question may be one."""
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    desk = BrokenDesk()
    desk.stacks = [RuntimeError("broken"), Stacks(text="x" * (1 << 17)), Stacks(text="fits")]
    async with talking(desk) as client:
        with caplog.at_level(logging.ERROR):
            broken, long, fits = [
                await ask(client, ActorStacksRequested(actor="a")) for _ in range(3)
            ]
    assert isinstance(broken, Refused)
    assert broken.reason.endswith("RuntimeError: broken")
    assert isinstance(long, Refused)
    assert "at ActorStacksRequested: ValueError" in long.reason
    assert fits == Stacks(text="fits")
    assert heard == []


async def test_a_pin_that_fails_is_heard_and_ends_no_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The supervisor asks for it by itself when something went wrong, and waits for no answer."""
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    network = MemoryNetwork(("supervisor",))
    bus = await Bus.over(
        network.transport("supervisor"), name="supervisor", incarnation=0, run_id="run"
    )
    children: dict[str, Any] = {"engine-0": object()}  # which has no state
    asking = Asking(bus, children)
    with caplog.at_level(logging.ERROR):
        asking.pin_all("engine-0 restarted: it was killed by SIGKILL")
        await asking.close()
    del asking
    gc.collect()
    await bus.close(deadline_s=0.05)
    assert "the recorders of the actors could not be pinned" in caplog.text
    assert "AttributeError" in caplog.text
    assert heard == []
