"""Ten thousand strangers at the door of one process, which goes on with its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from proc.bus.harness import number_of, numbered

from milepost.configs.spec import Address
from milepost.messages.bus import Bus, BusLimits, new_keys, zeromq
from milepost.messages.bus.doorstep import DESCRIPTORS_SHARE, STANDING_MAX
from milepost.messages.supervisor import Stacks, StacksRequested

HERE = Path(__file__).parent
CROWDS = 4
WAVES = (("silent", 250), ("half", 250), ("junk", 65), ("key", 60))
"""Of each crowd, four times over: 4 x 4 x 625 = 10,000 connections."""
ROUNDS = 4
LIMITS = BusLimits(probe_s=0.1)
ASK_S = 30.0


class House:
    """The process with the door, and the keys of the run."""

    def __init__(self) -> None:
        self.keys = {name: new_keys() for name in ("house", "peer", "newcomer")}
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in self.keys}
        self.addresses = {
            name: Address(
                endpoint=f"tcp://127.0.0.1:{listener.getsockname()[1]}",
                public_key=self.keys[name][0],
            )
            for name, listener in listeners.items()
        }
        house = listeners["house"].fileno()
        everyone = msgspec.json.encode(self.addresses).decode()
        words = [str(HERE / "house.py"), everyone, self.keys["house"][1], str(house)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", *words], stdin=subprocess.PIPE, pass_fds=(house,)
        )
        listeners.pop("house").close()
        self.listeners = listeners

    async def bus(self, name: str) -> Bus:
        return await Bus.open(
            name=name,
            incarnation=0,
            run_id="run",
            addresses=self.addresses,
            limits=LIMITS,
            secret_key=self.keys[name][1],
            listen_fd=self.listeners.pop(name).detach(),
        )

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Crowd:
    """One process of strangers."""

    def __init__(self, address: Address) -> None:
        host, _, port = address.endpoint.removeprefix("tcp://").partition(":")
        words = [str(HERE / "crowd.py"), host, port, address.public_key]
        self.process = subprocess.Popen(
            [sys.executable, "-P", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    async def does(self, command: str) -> int:
        return await asyncio.to_thread(self._does, command)

    def _does(self, command: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


@pytest.fixture
def crowds(house: House) -> Iterator[list[Crowd]]:
    made = [Crowd(house.addresses["house"]) for _ in range(CROWDS)]
    yield made
    for crowd in made:
        crowd.close()


@pytest.fixture
async def peer(house: House) -> AsyncIterator[Bus]:
    bus = await house.bus("peer")
    yield bus
    await bus.close(deadline_s=0.1)


async def standing(peer: Bus) -> dict[str, Any]:
    """How the process with the door stands now."""
    answer = (await peer.ask("house", StacksRequested(), deadline_s=ASK_S)).message
    assert isinstance(answer, Stacks)
    stands: dict[str, Any] = json.loads(answer.text)
    return stands


async def test_ten_thousand_strangers_stop_nothing_and_cost_little(
    house: House, peer: Bus, crowds: list[Crowd]
) -> None:
    """Silent ones, half a greeting, junk and keys of their own, more at once than the door takes.

    Every question of a proper peer is answered meanwhile; memory and descriptors have a bound that
    ten thousand open connections would break; a new peer finds its way in between the strangers;
    at the end nothing of them is left, and the process ends by itself.
    """
    before = await standing(peer)
    worst = dict(before)
    asked = 0
    for _ in range(ROUNDS):
        for kind, number in WAVES:
            for crowd in crowds:
                await crowd.does(f"come {kind} {number}")
                asked += 1
                assert (
                    number_of(await peer.ask("house", numbered(asked), deadline_s=ASK_S)) == asked
                )
                now = await standing(peer)
                worst = {name: max(now[name], worst[name]) for name in now}
    newcomer = await house.bus("newcomer")
    assert number_of(await newcomer.ask("house", numbered(1), deadline_s=ASK_S)) == 1
    assert sum([await crowd.does("go") for crowd in crowds]) == 10_000

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = STANDING_MAX if hard < 0 else min(STANDING_MAX, hard // DESCRIPTORS_SHARE)
    grown = worst["descriptors"] - before["descriptors"]
    assert most // 2 <= grown <= most + 2048, "the door was never full, or has no bound"
    grown = (worst["memory_bytes"] - before["memory_bytes"]) >> 20
    assert grown < 96, f"{grown} MiB for ten thousand strangers"
    assert worst["strangers"] >= most

    while (await standing(peer))["descriptors"] > before["descriptors"] + 2:
        await newcomer.ask("house", numbered(2), deadline_s=ASK_S)
    await newcomer.close(deadline_s=0.1)
    assert house.process.stdin is not None
    house.process.stdin.close()
    assert await asyncio.to_thread(house.process.wait, 20) == 0


async def test_a_mailbox_closes_though_nobody_has_read_who_came_and_went(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ's thread waits for room for its events, and closing must not wait for that thread."""
    monkeypatch.setattr(zeromq, "EVENTS_MAX", 100)
    bus = await house.bus("peer")
    host, _, port = house.addresses["peer"].endpoint.removeprefix("tcp://").partition(":")
    passers_by = [socket.socket() for _ in range(2000)]
    for each in passers_by:  # the event loop has no turn here: nothing is read
        each.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            each.connect((host, int(port)))
        each.close()
    await bus.close(deadline_s=0.1)
