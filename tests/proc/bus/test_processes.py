"""Two processes and real ZeroMQ: killed, stopped and started again at the wrong moment."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from proc.bus.harness import RUN_ID, number_of, numbered, until
from proc.bus.peer import MADE

from milepost.configs.spec import Address
from milepost.messages.bulk import Bulk
from milepost.messages.bus import Bus, BusLimits, Incoming, Unanswered, segment_prefix
from milepost.messages.bus.borrowing import FOLDER, owner_prefix
from milepost.messages.engine import WeightBucket
from milepost.messages.shared import Message
from milepost.messages.supervisor import Stacks, StacksRequested
from milepost.supervisor.cleanup.reaper import remove_segments

PEER = Path(__file__).parent / "peer.py"
HELD = 1000
"""Questions from this number on are taken and never answered."""


class Peers:
    """Starts processes; kills what is left of them."""

    def __init__(self, addresses: dict[str, Address]) -> None:
        self.addresses = addresses
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, incarnation: int = 0) -> subprocess.Popen[bytes]:
        everyone = msgspec.json.encode(self.addresses).decode()
        command = [sys.executable, "-P", str(PEER), RUN_ID, everyone, name, str(incarnation)]
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
        self.running.append(child)
        return child

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()
        self.running.remove(child)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers({name: Address(endpoint=f"ipc://{tmp_path}/{name}") for name in "ab"})
    yield made
    for child in list(made.running):
        made.kill(child)


@pytest.fixture
async def a(peers: Peers) -> AsyncIterator[Bus]:
    bus = await Bus.open(
        name="a",
        incarnation=0,
        run_id=RUN_ID,
        addresses=peers.addresses,
        limits=BusLimits(probe_s=0.1),
    )
    yield bus
    await bus.close(deadline_s=0.05)


async def taken_by(bus: Bus, peer: str) -> list[int]:
    answer = (await bus.ask(peer, StacksRequested(), deadline_s=20)).message
    assert isinstance(answer, Stacks)
    versions: list[int] = json.loads(answer.text)
    return versions


async def test_what_was_sent_before_the_peer_existed_arrives_when_it_does(
    a: Bus, peers: Peers
) -> None:
    """Actors start in any order."""
    told = [a.tell("b", numbered(i), deadline_s=30) for i in range(300)]
    peers.start("b")
    await asyncio.gather(*told)
    assert await taken_by(a, "b") == list(range(300))


async def test_kill_9_and_a_new_incarnation(a: Bus, peers: Peers) -> None:
    """What the dead one had taken fails by name at once; what it had not goes to the next."""
    old = peers.start("b")
    held = [a.ask("b", numbered(HELD + i), deadline_s=60) for i in range(3)]
    assert await taken_by(a, "b") == [HELD, HELD + 1, HELD + 2]
    peers.kill(old)
    await until(lambda: bool(a.statistics().links[0].problem), "the connection to be missed")
    waiting = [a.ask("b", numbered(i), deadline_s=60) for i in range(3)]
    peers.start("b", incarnation=1)
    for one in held:
        with pytest.raises(Unanswered, match=r"taken by incarnation 0 of b, which is gone"):
            await one
    assert [number_of(await one) for one in waiting] == [100, 101, 102]
    assert await taken_by(a, "b") == [0, 1, 2]


async def test_kill_9_in_the_middle_of_a_flood_loses_and_repeats_nothing(
    a: Bus, peers: Peers
) -> None:
    """Every message told to be taken was taken; every other one reached the new incarnation."""
    old = peers.start("b")
    told = [a.tell("b", numbered(i), deadline_s=60) for i in range(3000)]
    await until(told[500].done, "the flood to be under way", deadline_s=20)
    peers.kill(old)
    acknowledged = sum(one.done() for one in told)
    peers.start("b", incarnation=1)
    await asyncio.gather(*told)
    after = await taken_by(a, "b")
    assert after == list(range(after[0], 3000)), "in order, without a hole"
    assert acknowledged <= after[0] <= acknowledged + 256, "from the first not acknowledged"


async def test_a_stopped_peer_is_told_by_name_and_goes_on_where_it_was(
    a: Bus, peers: Peers
) -> None:
    """SIGSTOP: alive, connected, and silent. After SIGCONT nothing has come twice."""
    child = peers.start("b")
    assert number_of(await a.ask("b", numbered(1), deadline_s=20)) == 101
    os.kill(child.pid, signal.SIGSTOP)
    later = a.ask("b", numbered(2), deadline_s=60)
    with pytest.raises(
        Unanswered,
        match=r"b: EpochAnswer was not taken within 0\.5 s; b was last heard from \d\.\d s ago",
    ):
        await a.ask("b", numbered(3), deadline_s=0.5)
    os.kill(child.pid, signal.SIGCONT)
    assert number_of(await later) == 102
    # The one given up is withdrawn, unless the peer takes it before it has read of that.
    assert await taken_by(a, "b") in ([1, 2], [1, 2, 3])


async def test_a_second_process_cannot_take_an_address(a: Bus, peers: Peers) -> None:
    peers.start("b")
    await taken_by(a, "b")
    thief = peers.start("b", incarnation=1)
    _, errors = await asyncio.to_thread(thief.communicate)
    assert b"AddressError: another process owns" in errors
    assert number_of(await a.ask("b", numbered(1), deadline_s=20)) == 101


async def test_the_memory_of_a_killed_process_stays_valid_and_carries_the_run_s_prefix(
    a: Bus, peers: Peers
) -> None:
    """A reader keeps good bytes; the name is left for the reaper, which finds it by its prefix."""
    child = peers.start("b")
    bucket = WeightBucket(
        version=1, index=0, names=("w",), tensors=(Bulk("uint8", (2 << 20,), b"\x07" * (2 << 20)),)
    )
    answer = await a.ask("b", bucket, deadline_s=20)
    peers.kill(child)
    assert answer.message == bucket
    left = list(FOLDER.glob(f"{segment_prefix(RUN_ID)}*"))
    assert left
    for path in left:
        path.unlink()
    assert answer.message == bucket


def tensor_of(message: Message) -> memoryview:
    assert isinstance(message, WeightBucket)
    return message.tensors[0].data


async def test_what_a_killed_process_had_made_to_be_sent_is_found_by_the_reaper(
    a: Bus, peers: Peers
) -> None:
    """A trainer dies with a version in its hands: readers keep theirs, and the host its memory."""
    child = peers.start("b")
    size = 2 << 20
    bulk = Bulk("uint8", (size,), b"\x07" * size)
    bucket = WeightBucket(version=MADE, index=0, names=("w",), tensors=(bulk,))
    answers = [(await a.ask("b", bucket, deadline_s=20)).message for _ in range(3)]
    peers.kill(child)
    assert answers == [bucket] * 3
    assert list(FOLDER.glob(f"{owner_prefix(RUN_ID, 'b', 0)}*"))
    remove_segments(owner_prefix(RUN_ID, "b", 0))
    assert not list(FOLDER.glob(f"{owner_prefix(RUN_ID, 'b', 0)}*"))
    assert answers == [bucket] * 3


async def test_a_receiver_that_is_killed_takes_nothing_from_the_payload_it_read(
    a: Bus, peers: Peers
) -> None:
    """An engine dies with a version mapped. Its maker has it, and sends it to the next one."""
    child = peers.start("b")
    size = 2 << 20
    data = a.allocate(size, to="b")
    data[:] = b"\x05" * size
    bucket = WeightBucket(version=1, index=0, names=("w",), tensors=(Bulk("uint8", (size,), data),))
    await a.ask("b", bucket, deadline_s=20)
    a.tell("b", bucket, deadline_s=60).cancel()
    peers.kill(child)
    peers.start("b", incarnation=1)
    answer = (await a.ask("b", bucket, deadline_s=60)).message
    assert answer == bucket
    assert data == b"\x05" * size
    del answer, bucket, data
    await until(lambda: a.statistics().memory.allocated_bytes == 0, "its end", deadline_s=60)
    fresh = a.allocate(size, to="b")
    fresh[:] = b"\x06" * size
    last = WeightBucket(version=2, index=0, names=("w",), tensors=(Bulk("uint8", (size,), fresh),))
    assert tensor_of((await a.ask("b", last, deadline_s=60)).message) == b"\x06" * size


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_of_kills_and_stops_leaves_no_question_open(
    a: Bus, peers: Peers, seed: int
) -> None:
    """Small, large and shared questions; the peer dies or freezes at any moment.

    Every question is answered rightly, or fails by name because the process that took it is gone.
    """
    chance = random.Random(seed)
    incarnation = 0
    child = peers.start("b")
    asked: list[asyncio.Future[Incoming]] = []
    sizes = [0] * 40 + [100_000] * 4 + [2 << 20]
    for _ in range(8):
        for _ in range(150):
            size = chance.choice(sizes)
            tensors = (Bulk("uint8", (size,), bytes(size)),)
            bucket = WeightBucket(version=len(asked), index=size, names=(), tensors=tensors)
            asked.append(a.ask("b", bucket, deadline_s=60))
        mark = chance.randrange(len(asked) - 150, len(asked))
        await until(asked[mark].done, f"question {mark} to end", deadline_s=60)
        if chance.random() < 0.5:
            incarnation += 1
            peers.kill(child)
            child = peers.start("b", incarnation)
        else:
            os.kill(child.pid, signal.SIGSTOP)
            os.kill(child.pid, signal.SIGCONT)
    ends = await asyncio.gather(*asked, return_exceptions=True)
    for number, end in enumerate(ends):
        if isinstance(end, Incoming):
            assert isinstance(end.message, WeightBucket)
            assert end.message.version == number
            assert end.message.tensors[0].nbytes == end.message.index
        else:
            assert isinstance(end, Unanswered)
            assert "which is gone" in str(end)
    answered = sum(isinstance(end, Incoming) for end in ends)
    assert answered >= len(ends) - 256 * incarnation
    peers.kill(child)
    for path in FOLDER.glob(f"{segment_prefix(RUN_ID)}*"):
        path.unlink(missing_ok=True)
