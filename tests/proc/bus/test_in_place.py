"""What every bus promises of payloads made where they travel from: no copy, no byte changed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread, get_ident

import msgspec
import pytest
from proc.bus.harness import LIMITS, RUN_ID, World, ended, serve, until

from milepost.messages.bulk import Bulk
from milepost.messages.bus import Bus, Undelivered, segment_prefix
from milepost.messages.bus.borrowing import FOLDER
from milepost.messages.bus.memmove import address_of
from milepost.messages.bus.packing import OFF_LOOP_BYTES
from milepost.messages.bus.segments import Segments
from milepost.messages.engine import WeightBucket
from milepost.messages.layout import Encoded, Place
from milepost.messages.shared import Message

SIZE = 2 << 20


def made(bus: Bus, to: str, value: int, size: int = SIZE) -> WeightBucket:
    """A message over memory of the bus, in two halves."""
    data = bus.allocate(size, to=to)
    data[:] = bytes([value]) * size
    halves = data[: size // 2], data[size // 2 :]
    tensors = tuple(Bulk("uint8", (half.nbytes,), half) for half in halves)
    return WeightBucket(version=value, index=0, names=("a", "b"), tensors=tensors)


def expected(value: int, size: int = SIZE) -> WeightBucket:
    half = Bulk("uint8", (size // 2,), bytes([value]) * (size // 2))
    return WeightBucket(version=value, index=0, names=("a", "b"), tensors=(half, half))


def inodes() -> set[int]:
    return {path.stat().st_ino for path in FOLDER.glob(f"{segment_prefix(RUN_ID)}*")}


async def test_it_arrives_as_it_was_made_and_there_is_only_one_of_it(world: World) -> None:
    a, b, c = [await world.bus(name) for name in "abc"]
    message = made(a, "b", 1)
    told = [a.tell(name, message, deadline_s=10) for name in "bc"]
    got = [(await b.receive()).message, (await c.receive()).message]
    await asyncio.gather(*told)
    assert got == [expected(1)] * 2
    memory = a.statistics().memory
    assert (memory.segments_bytes, memory.allocated_bytes, memory.loans) == (SIZE, SIZE, 2)
    assert len(inodes()) == 1


async def test_the_same_memory_comes_back_when_everybody_is_done(world: World) -> None:
    """Its maker may even have been the last one; nobody has to call anything for it."""
    a, b = await world.bus("a"), await world.bus("b")
    message = made(a, "b", 1)
    place = address_of(message.tensors[0].data)
    told = a.tell("b", message, deadline_s=10)
    incoming = await b.receive()
    await told
    del incoming
    await until(lambda: a.statistics().memory.loans == 0, "the receiver to give it back")
    assert a.statistics().memory.allocated_bytes == SIZE
    del message
    await until(lambda: a.statistics().memory.allocated_bytes == 0, "it to be free")
    again = await asyncio.to_thread(made, a, "b", 2)
    assert address_of(again.tensors[0].data) == place
    told = a.tell("b", again, deadline_s=10)
    assert (await b.receive()).message == expected(2)
    await told


async def test_an_answer_is_made_in_place_too(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    server = serve(b, lambda incoming: b.reply(incoming, made(b, "a", 9)))
    answer = await a.ask("b", expected(1, 512), deadline_s=10)
    assert answer.message == expected(9)
    assert b.statistics().memory.segments_bytes == SIZE
    await ended(server)


async def test_it_is_passed_on_without_a_copy_and_outlives_its_maker(world: World) -> None:
    """The trainer's version, over the publisher, to an engine: written once in all."""
    a, b, c = [await world.bus(name) for name in "abc"]
    told = a.tell("b", made(a, "b", 4), deadline_s=10)
    between = (await b.receive()).message
    await told
    on = b.tell("c", between, deadline_s=10)
    del between
    final = (await c.receive()).message
    await on
    assert len(inodes()) == 1
    await a.close(deadline_s=1)
    await b.close(deadline_s=1)
    assert final == expected(4)
    assert inodes() == set()


async def test_a_payload_outlives_the_bus_that_gave_it(world: World) -> None:
    """A thread that exports goes on for a moment when its process is told to stop."""
    a, b = await world.bus("a"), await world.bus("b")
    message = made(a, "b", 3)
    told = a.tell("b", message, deadline_s=10)
    got = (await b.receive()).message
    await told
    await a.close(deadline_s=1)
    assert inodes() == set()
    assert message == got == expected(3)
    late = made(a, "b", 5)
    assert inodes() == set()
    assert late == expected(5)


async def test_a_receiver_on_another_host_gets_the_same_bytes_in_frames(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    for bus in (a, b):
        monkeypatch.setattr(bus._host.transport, "is_local", lambda _: False)
    message = made(a, "b", 6)
    told = a.tell("b", message, deadline_s=10)
    assert (await b.receive()).message == expected(6)
    await told
    assert inodes() == set()
    assert a.statistics().memory.allocated_elsewhere == 0, "no want of room"


async def test_memory_of_one_receiver_s_host_is_sent_to_another_host_in_frames(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    message = made(a, "b", 6)
    monkeypatch.setattr(a._host.transport, "is_local", lambda _: False)
    told = a.tell("b", message, deadline_s=10)
    assert (await b.receive()).message == expected(6)
    await told
    assert a.statistics().memory.loans == 0


async def test_a_host_without_shared_memory_works_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Segments, "usable", property(lambda _: False))
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", made(a, "b", 7), deadline_s=10)
    assert (await b.receive()).message == expected(7)
    await told
    assert inodes() == set()


async def test_beyond_the_limit_payloads_are_copied_and_counted(world: World) -> None:
    limits = replace(LIMITS, allocated_bytes_max=SIZE)
    a, b = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    first, second = made(a, "b", 1), made(a, "b", 2)
    told = [a.tell("b", one, deadline_s=10) for one in (first, second)]
    got = [(await b.receive()).message for _ in range(2)]
    await asyncio.gather(*told)
    assert got == [expected(1), expected(2)]
    memory = a.statistics().memory
    assert (memory.allocated_bytes, memory.allocated_max) == (SIZE, SIZE)
    assert (memory.allocated_elsewhere, memory.without_room) == (1, 0)


async def test_a_thread_makes_payloads_while_the_loop_sends_them(world: World) -> None:
    """Each arrives with the bytes it was made of, though memory comes back all the time."""
    a, b = await world.bus("a"), await world.bus("b")
    loop = asyncio.get_running_loop()
    told: list[asyncio.Future[None]] = []

    def send(message: WeightBucket) -> None:
        told.append(a.tell("b", message, deadline_s=30))

    def work() -> None:
        for value in range(40):
            loop.call_soon_threadsafe(send, made(a, "b", value))

    thread = Thread(target=work)
    thread.start()
    for value in range(40):
        message = (await b.receive()).message
        assert message == expected(value)
        del message
    await asyncio.to_thread(thread.join)
    await asyncio.gather(*told)
    told.clear()
    await until(lambda: a.statistics().memory.allocated_bytes == 0, "all of it to come back")


async def test_what_was_never_sent_gives_its_memory_back_at_once(world: World) -> None:
    """A version that the publisher had no time for: nothing may keep it until somebody looks for
    cycles, which a trainer seldom does."""
    limits = replace(LIMITS, window_messages=1)
    a, b = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    first = a.tell("b", expected(1, 512), deadline_s=30)
    gc.disable()
    try:
        second = a.tell("b", made(a, "b", 2), deadline_s=0.05)
        await asyncio.wait({second})
        assert isinstance(second.exception(), Undelivered)
        del second
        await until(lambda: a.statistics().memory.allocated_bytes == 0, "its memory", 60)
    finally:
        gc.enable()
    await b.receive()
    await first


async def test_a_message_that_cannot_travel_after_all_keeps_no_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of segments make a body longer: it may be too long only with them."""
    a = await world.bus("a")
    codec = a._packing._codec
    encode = codec.encode

    def too_long(message: Message, places: Sequence[Place] = ()) -> Encoded:
        if places:
            raise ValueError("too long with its places")
        return encode(message)

    monkeypatch.setattr(codec, "encode", too_long)
    for message in (expected(1), made(a, "b", 2)):
        with pytest.raises(ValueError, match="too long with its places"):
            await a.tell("b", message, deadline_s=10)
    assert a.statistics().memory.loans == 0


async def test_a_long_body_is_packed_on_another_thread_where_nothing_is_copied_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    codec = a._packing._codec
    encode, threads = codec.encode, list[int]()

    def noting(message: Message, places: Sequence[Place] = ()) -> Encoded:
        if places:
            threads.append(get_ident())
        return encode(message, places)

    monkeypatch.setattr(codec, "encode", noting)
    for names in (("a", "b"), ("a" * OFF_LOOP_BYTES, "b")):
        message = msgspec.structs.replace(made(a, "b", 3), names=names)
        told = a.tell("b", message, deadline_s=10)
        assert (await b.receive()).message == message
        await told
    assert [ident == get_ident() for ident in threads] == [True, False]
