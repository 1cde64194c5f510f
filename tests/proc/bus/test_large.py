"""What every bus promises of large messages: unchanged, in order, and nothing left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from proc.bus.harness import LIMITS, RUN_ID, World, collect, ended, numbered, serve, until

from milepost.messages.bulk import Bulk
from milepost.messages.bus import (
    Incoming,
    segment_prefix,
)
from milepost.messages.bus.borrowing import FOLDER
from milepost.messages.engine import EpochAnswer, WeightBucket
from milepost.messages.supervisor import Begin, EventReported, Stacks, StacksRequested


def bucket(*sizes: int) -> WeightBucket:
    tensors = tuple(
        Bulk("uint8", (size,), bytes([i % 251 for i in range(256)]) * (size // 256))
        for size in sizes
    )
    return WeightBucket(version=1, index=0, names=tuple(map(str, sizes)), tensors=tensors)


def segments() -> list[str]:
    return [path.name for path in FOLDER.glob(f"{segment_prefix(RUN_ID)}*")]


@pytest.mark.parametrize("size", [256, 1024, 4096, 1 << 17, 1 << 21])
async def test_arrays_of_any_size_arrive_as_they_were(world: World, size: int) -> None:
    """In the body, in a frame, in a frame that is not copied, in shared memory; both ways."""
    a, b = await world.bus("a"), await world.bus("b")
    message = bucket(size, 256, size)
    server = serve(b, lambda incoming: b.reply(incoming, incoming.message))
    answer = await a.ask("b", message, deadline_s=10)
    assert answer.message == message
    await ended(server)


async def test_shared_memory_is_used_again_and_gone_after_the_end(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    message = bucket(1 << 21)
    for _ in range(3):
        told = a.tell("b", message, deadline_s=10)
        incoming = await b.receive()
        await told
        assert incoming.message == message
        assert len(segments()) == 1
        assert (a.statistics().memory.loans, b.statistics().memory.mapped) == (1, 1)
        del incoming
        await until(lambda: a.statistics().memory.loans == 0, "the memory to be given back")
    assert len(segments()) == 1
    await a.close(deadline_s=1)
    assert segments() == []


async def test_memory_that_is_still_read_is_not_written_again(world: World) -> None:
    """A buffer actor may hold a trajectory for minutes; the next message must not overwrite it."""
    a, b = await world.bus("a"), await world.bus("b")
    first, second = bucket(1 << 21), bucket(1 << 20, 1 << 20)
    held = []
    for message in (first, second):
        told = a.tell("b", message, deadline_s=10)
        held.append((await b.receive()).message)
        await told
    assert held == [first, second]
    assert len(segments()) == 2
    await a.close(deadline_s=1)
    assert held == [first, second]


async def test_one_copy_serves_every_receiver(world: World) -> None:
    """The publisher sends one bucket to all engines."""
    a, b, c = [await world.bus(name) for name in "abc"]
    message = bucket(1 << 21)
    told = [a.tell(name, message, deadline_s=10) for name in "bc"]
    got = [(await b.receive()).message, (await c.receive()).message]
    await asyncio.gather(*told)
    assert got == [message, message]
    assert len(segments()) == 1
    assert a.statistics().memory.loans == 2


async def test_a_large_message_keeps_its_place_in_the_order(world: World) -> None:
    """It is copied on another thread meanwhile; what was sent after it must not overtake it."""
    a, b = await world.bus("a"), await world.bus("b")
    got: list[Incoming] = []
    taker = collect(b, got)
    told = []
    for i in range(5):
        told.append(a.tell("b", numbered(i), deadline_s=10))
        told.append(a.tell("b", bucket(1 << 21), deadline_s=10))
    await asyncio.gather(*told)
    assert [type(one.message) for one in got] == [EpochAnswer, WeightBucket] * 5
    got.clear()
    await ended(taker)


async def test_a_large_body_is_decoded_in_order_too(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    big = EventReported(source="a", kind="k", text="x" * (2 << 20))
    told = [a.tell("b", one, deadline_s=10) for one in (big, Begin(), big, big, Begin())]
    got = [(await b.receive()).message for _ in range(5)]
    await asyncio.gather(*told)
    assert got == [big, Begin(), big, big, Begin()]
    server = serve(b, lambda incoming: b.reply(incoming, Stacks(text="y" * (2 << 20))))
    answer = await a.ask("b", StacksRequested(), deadline_s=10)
    assert answer.message == Stacks(text="y" * (2 << 20))
    await ended(server)


async def test_the_bytes_under_way_are_bounded_too(world: World) -> None:
    """A window of messages may be a gigabyte each: those that wait are not even copied yet."""
    limits = replace(LIMITS, window_bytes=5 << 20)
    a, b = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    told = [a.tell("b", bucket(2 << 20), deadline_s=10) for _ in range(6)]
    told.append(a.tell("b", bucket(8 << 20), deadline_s=10))
    await until(lambda: b.statistics().mailbox.depth == 2, "two of them")
    assert a.statistics().links[0].depth == 5
    assert len(segments()) == 2
    got = [len((await b.receive()).message.tensors[0].data) for _ in range(7)]  # type: ignore[attr-defined]
    await asyncio.gather(*told)
    assert got == [2 << 20] * 6 + [8 << 20]
    told = [a.tell("b", bucket(2 << 20), deadline_s=10) for _ in range(3)]
    await until(lambda: b.statistics().mailbox.depth == 2, "two again")
    for _ in range(3):
        await b.receive()
    await asyncio.gather(*told)


async def test_what_came_in_shared_memory_is_sent_on_in_place(world: World) -> None:
    """From the trainer over the publisher to the engines there is one copy of the weights."""
    a, b, c = [await world.bus(name) for name in "abc"]
    message = bucket(1 << 21, 1 << 20)
    told = a.tell("b", message, deadline_s=10)
    between = (await b.receive()).message
    await told
    on = b.tell("c", between, deadline_s=10)
    del between
    final = (await c.receive()).message
    await on
    assert b.statistics().memory.segments_bytes == 0
    assert len({(FOLDER / name).stat().st_ino for name in segments()}) == 1
    await a.close(deadline_s=1)
    await b.close(deadline_s=1)
    assert final == message
    assert segments() == []


async def test_a_large_message_given_up_while_it_is_copied_leaves_nothing(world: World) -> None:
    """And what waits behind it goes on."""
    a, b = await world.bus("a"), await world.bus("b")
    given_up = [a.tell("b", bucket(1 << 21), deadline_s=10) for _ in range(3)]
    behind = a.tell("b", numbered(7), deadline_s=10)
    for one in given_up:
        one.cancel()
    while not behind.done():
        incoming = await b.receive()
        if isinstance(incoming.message, EpochAnswer):
            await behind
        del incoming
    await until(lambda: a.statistics().memory.loans == 0, "every loan to end")
    assert a.statistics().links[0].depth == 0


async def test_the_memory_a_dead_peer_had_taken_is_free_when_its_successor_speaks(
    world: World,
) -> None:
    a, old = await world.bus("a"), await world.bus("b")
    told = a.tell("b", bucket(1 << 21), deadline_s=10)
    held = await old.receive()
    await told
    await world.kill(old)
    assert a.statistics().memory.loans == 1
    new = await world.bus("b", incarnation=1)
    told = a.tell("b", numbered(1), deadline_s=10)
    await new.receive()
    await told
    assert a.statistics().memory.loans == 0
    assert segments() == []
    assert held.message == bucket(1 << 21), "the dead process would have kept its bytes"
