"""What every bus promises, over memory and over real ZeroMQ: the fake is held to the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from proc.bus.harness import LIMITS, World, collect, ended, serve, until

from milepost.messages import registry
from milepost.messages.bulk import Bulk
from milepost.messages.bus import (
    AddressError,
    Bus,
    BusClosed,
    Incoming,
    Unanswered,
    Undelivered,
    segment_prefix,
)
from milepost.messages.bus.shared_memory import FOLDER
from milepost.messages.engine import EpochAnswer, WeightBucket
from milepost.messages.shared import Message
from milepost.messages.supervisor import Begin, EventReported, Stacks, StacksRequested


def numbered(number: int) -> EpochAnswer:
    return EpochAnswer(version=number, ok=True)


def number_of(incoming: Incoming) -> int:
    assert isinstance(incoming.message, EpochAnswer)
    return incoming.message.version


@pytest.fixture(params=["memory", "zeromq"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(request.param, tmp_path)
    yield made
    await made.close()


async def test_a_tell_is_done_when_it_is_taken_and_not_before(world: World) -> None:
    """An actor that counts on delivery must not hear of it while the message lies in an inbox."""
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", Begin(), deadline_s=5)
    await until(lambda: b.statistics().mailbox.depth == 1, "the message to arrive")
    assert not told.done()
    incoming = await b.receive()
    await told
    assert (incoming.source, incoming.source_incarnation) == ("a", 0)
    assert incoming.message == Begin()
    assert not incoming.wants_reply


async def test_an_answer_comes_back_to_the_question_that_caused_it(world: World) -> None:
    a, b = await world.bus("a", incarnation=3), await world.bus("b", incarnation=7)
    server = serve(b, lambda incoming: b.reply(incoming, numbered(number_of(incoming) + 100)))
    answers = await asyncio.gather(*(a.ask("b", numbered(i), deadline_s=5) for i in range(50)))
    assert [number_of(answer) for answer in answers] == list(range(100, 150))
    assert {(one.source, one.source_incarnation) for one in answers} == {("b", 7)}
    assert len({one.cause for one in answers}) == 50
    await ended(server)


async def test_messages_of_one_link_arrive_in_order_and_once(world: World) -> None:
    """Far more than a window, so that most of them wait for room first."""
    a, b = await world.bus("a"), await world.bus("b")
    got: list[Incoming] = []
    taker = collect(b, got)
    await asyncio.gather(*(a.tell("b", numbered(i), deadline_s=20) for i in range(1500)))
    assert [number_of(one) for one in got] == list(range(1500))
    assert len({one.message_id for one in got}) == 1500
    await ended(taker)


async def test_the_cause_travels_along(world: World) -> None:
    """`why` follows a message back through the actors it led through."""
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", Begin(), deadline_s=5, cause=12345)
    assert (await b.receive()).cause == 12345
    await told


async def test_a_slow_receiver_bounds_what_is_under_way(world: World) -> None:
    """Credit is what the receiver took: its inbox never holds more than the window."""
    limits = replace(LIMITS, window_messages=8)
    a, b = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    told = [a.tell("b", numbered(i), deadline_s=5) for i in range(30)]
    await until(lambda: b.statistics().mailbox.depth == 8, "a full window")
    link = a.statistics().links[0]
    assert (link.unacked, link.depth, link.window) == (8, 22, 8)
    assert b.statistics().mailbox.blocked_senders == 1
    for i in range(30):
        assert number_of(await b.receive()) == i
    await asyncio.gather(*told)
    assert b.statistics().mailbox.peak == 8


async def test_a_full_outbox_fails_by_name_instead_of_growing(world: World) -> None:
    limits = replace(LIMITS, window_messages=2, outbox_messages_max=3)
    a = await world.bus("a", limits=limits)
    told = [a.tell("b", numbered(i), deadline_s=0.2) for i in range(6)]
    with pytest.raises(Undelivered, match=r"b: EpochAnswer not sent: 3 messages wait for b"):
        await told[5]
    for one in told[:5]:
        with pytest.raises(Undelivered):
            await one


async def test_an_unknown_peer_is_named_with_the_nearest_known_one(world: World) -> None:
    a = await world.bus("a")
    with pytest.raises(Undelivered, match=r"bb: Begin cannot be sent: .*did you mean b"):
        await a.tell("bb", Begin(), deadline_s=5)
    with pytest.raises(Unanswered, match=r"zz: StacksRequested .*known are a, b, c"):
        await a.ask("zz", StacksRequested(), deadline_s=5)


async def test_a_message_not_taken_in_time_is_told_and_never_delivered_after(
    world: World,
) -> None:
    """It is withdrawn from the inbox: what was reported as undelivered is not acted upon later."""
    a, b = await world.bus("a"), await world.bus("b")
    late = a.tell("b", numbered(1), deadline_s=0.1)
    with pytest.raises(
        Undelivered, match=r"b: EpochAnswer arrived but was not taken within 0\.1 s; b was last"
    ):
        await late
    await until(lambda: b.statistics().mailbox.depth == 0, "the message to be withdrawn")
    second = a.tell("b", numbered(2), deadline_s=5)
    assert number_of(await b.receive()) == 2
    await second
    assert b.statistics().mailbox.skipped == 1


async def test_a_peer_never_heard_from_is_told_as_such(world: World) -> None:
    a = await world.bus("a")
    with pytest.raises(Unanswered, match=r"c: StacksRequested was not taken .*never heard from"):
        await a.ask("c", StacksRequested(), deadline_s=0.1)


async def test_a_late_answer_is_counted_and_changes_nothing(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    answer = a.ask("b", StacksRequested(), deadline_s=0.15)
    incoming = await b.receive()
    with pytest.raises(Unanswered, match=r"b: StacksRequested was taken but not answered within"):
        await answer
    b.reply(incoming, Stacks(text="too late"))
    told = a.tell("b", Begin(), deadline_s=5)
    await b.receive()
    await told
    assert a.statistics().links[0].unanswered == 0


async def test_a_second_answer_changes_nothing(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    answer = a.ask("b", StacksRequested(), deadline_s=5)
    incoming = await b.receive()
    b.reply(incoming, Stacks(text="first"))
    b.reply(incoming, Stacks(text="second"))
    assert (await answer).message == Stacks(text="first")
    assert a.statistics().links[0].late_answers == 0


async def test_only_a_question_can_be_answered(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", Begin(), deadline_s=5)
    incoming = await b.receive()
    with pytest.raises(ValueError, match="a did not ask"):
        b.reply(incoming, Stacks(text=""))
    await told


async def test_a_restarted_peer_gets_what_the_old_one_had_not_taken(world: World) -> None:
    """The old incarnation took one message of three; the new one must see exactly two."""
    a, old = await world.bus("a"), await world.bus("b")
    told = [a.tell("b", numbered(i), deadline_s=10) for i in range(3)]
    assert number_of(await old.receive()) == 0
    await told[0]
    await world.kill(old)
    new = await world.bus("b", incarnation=1)
    assert [number_of(await new.receive()) for _ in range(2)] == [1, 2]
    await asyncio.gather(*told)
    more = a.tell("b", numbered(3), deadline_s=10)
    assert number_of(await new.receive()) == 3
    await more
    link = a.statistics().links[0]
    assert (link.incarnation, link.restarts, link.unacked) == (1, 1, 0)


async def test_a_question_the_dead_incarnation_took_fails_at_once_by_name(world: World) -> None:
    """Nobody will ever answer it; waiting for the deadline would stall the run."""
    a, old = await world.bus("a"), await world.bus("b")
    taken = a.ask("b", numbered(1), deadline_s=60)
    assert number_of(await old.receive()) == 1
    await until(lambda: a.statistics().links[0].unacked == 0, "the question to be taken")
    waiting = a.ask("b", numbered(2), deadline_s=60)
    await world.kill(old)
    new = await world.bus("b", incarnation=1)
    server = serve(new, lambda incoming: new.reply(incoming, numbered(number_of(incoming) * 10)))
    with pytest.raises(
        Unanswered, match=r"EpochAnswer was taken by incarnation 0 of b, which is gone; inc.* 1 "
    ):
        await taken
    assert number_of(await waiting) == 20
    await ended(server)


async def test_the_supervisor_can_tell_of_a_restart_before_the_peer_is_heard(
    world: World,
) -> None:
    a, old = await world.bus("a"), await world.bus("b")
    taken = a.ask("b", numbered(1), deadline_s=60)
    await old.receive()
    await until(lambda: a.statistics().links[0].unacked == 0, "the question to be taken")
    a.peer_is_now("b", 1)
    with pytest.raises(Unanswered, match="is gone"):
        await taken


async def test_a_restarted_sender_starts_a_new_stream(world: World) -> None:
    old, b = await world.bus("a"), await world.bus("b")
    told = old.tell("b", numbered(1), deadline_s=5)
    assert number_of(await b.receive()) == 1
    await told
    await world.kill(old)
    new = await world.bus("a", incarnation=1)
    told = new.tell("b", numbered(2), deadline_s=5)
    incoming = await b.receive()
    await told
    assert (number_of(incoming), incoming.source_incarnation) == (2, 1)


async def test_a_cancelled_receive_loses_nothing(world: World) -> None:
    """Cancelled before, while and after messages arrive; every one is taken by the next call."""
    a, b = await world.bus("a"), await world.bus("b")
    told = []
    got = []
    for i in range(40):
        receiving = asyncio.create_task(b.receive())
        if i % 2:
            await asyncio.sleep(0)
        told.append(a.tell("b", numbered(i), deadline_s=5))
        if i % 3:
            await until(lambda: b.statistics().mailbox.depth > 0, "a message")
        receiving.cancel()
        result = await asyncio.gather(receiving, return_exceptions=True)
        got += [number_of(one) for one in result if isinstance(one, Incoming)]
    while len(got) < 40:
        got.append(number_of(await b.receive()))
    await asyncio.gather(*told)
    assert got == list(range(40))


async def test_receive_lets_other_tasks_run(world: World) -> None:
    """A full inbox must not keep the loop for itself: timers and sockets wait behind it."""
    a, b = await world.bus("a"), await world.bus("b")
    told = [a.tell("b", numbered(i), deadline_s=5) for i in range(200)]
    await until(lambda: b.statistics().mailbox.depth == 200, "a full inbox")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(200):
        await b.receive()
    assert turns >= 5
    await asyncio.gather(*told)
    await ended(task)


async def test_two_tasks_may_not_receive(world: World) -> None:
    b = await world.bus("b")
    first = asyncio.create_task(b.receive())
    await asyncio.sleep(0)
    with pytest.raises(AssertionError, match="two tasks receive on the bus of b"):
        await b.receive()
    await ended(first)


class OnlyHere(Message, kw_only=True):
    """A type that the receiver does not know."""


@pytest.mark.parametrize("way", ["tell", "ask"])
async def test_an_unknown_type_is_refused_by_name(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's message is answered, never ignored; what follows it is delivered."""
    a, b = await world.bus("a"), await world.bus("b")
    got: list[Incoming] = []
    here = registry.Registered("OnlyHere", OnlyHere, has_bulk=False)
    monkeypatch.setitem(registry._by_name, "OnlyHere", here)
    refused = (a.tell if way == "tell" else a.ask)("b", OnlyHere(), deadline_s=5)
    monkeypatch.delitem(registry._by_name, "OnlyHere")
    after = a.tell("b", Begin(), deadline_s=5)
    taker = collect(b, got)
    with pytest.raises(Undelivered, match="b: OnlyHere was refused: unknown message type"):
        await refused
    await after
    assert [one.message for one in got] == [Begin()]
    assert b.statistics().mailbox.refused == 1
    await ended(taker)


async def test_another_run_is_refused_by_name(world: World) -> None:
    a, b = await world.bus("a", run_id="other"), await world.bus("b")
    taker = collect(b, [])
    with pytest.raises(Undelivered, match="a belongs to run other, b to run"):
        await a.tell("b", Begin(), deadline_s=5)
    await ended(taker)


async def test_a_message_that_cannot_travel_fails_where_it_is_sent(world: World) -> None:
    a = await world.bus("a")
    bad = EventReported(source="a", kind="k", text="t", values={"x": object()})
    with pytest.raises(TypeError, match="EventReported"):
        a.tell("b", bad, deadline_s=5)


async def test_closing_tells_by_name_what_was_not_delivered(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", Begin(), deadline_s=60)
    asked = a.ask("c", StacksRequested(), deadline_s=60)
    await until(lambda: b.statistics().mailbox.depth == 1, "the message to arrive")
    failed = await a.close(deadline_s=0.05)
    assert sorted(str(error) for error in failed) == [
        "b: Begin was given up: a closed its bus",
        "c: StacksRequested was given up: a closed its bus",
    ]
    with pytest.raises(Undelivered):
        await told
    with pytest.raises(Unanswered):
        await asked
    with pytest.raises(BusClosed):
        a.tell("b", Begin(), deadline_s=1)


async def test_closing_waits_for_what_is_still_taken_in_time(world: World) -> None:
    """The last words of an actor (its answers too) are delivered before its sockets go."""
    a, b = await world.bus("a"), await world.bus("b")
    answer = a.ask("b", StacksRequested(), deadline_s=5)
    incoming = await b.receive()
    told = b.tell("a", Begin(), deadline_s=5)
    b.reply(incoming, Stacks(text="last words"))
    closing = asyncio.create_task(b.close(deadline_s=5))
    assert (await a.receive()).message == Begin()
    assert (await answer).message == Stacks(text="last words")
    await told
    assert await closing == ()


async def test_a_receiver_that_waits_hears_of_the_end(world: World) -> None:
    b = await world.bus("b")
    receiving = asyncio.create_task(b.receive())
    await asyncio.sleep(0)
    await b.close(deadline_s=0.1)
    with pytest.raises(BusClosed, match="the bus of b was closed"):
        await receiving


async def test_a_full_inbox_stops_reading_and_goes_on_when_there_is_room(world: World) -> None:
    limits = replace(LIMITS, inbox_messages_max=10)
    a, b, c = [await world.bus(name, limits=limits) for name in "abc"]
    told = [one.tell("b", numbered(i), deadline_s=10) for i in range(30) for one in (a, c)]
    await until(lambda: b.statistics().mailbox.paused, "a full inbox")
    assert b.statistics().mailbox.depth <= 10
    got = [await b.receive() for _ in range(60)]
    await asyncio.gather(*told)
    for source in "ac":
        assert [number_of(one) for one in got if one.source == source] == list(range(30))
    assert not b.statistics().mailbox.paused


def bucket(*sizes: int) -> WeightBucket:
    tensors = tuple(
        Bulk("uint8", (size,), bytes([i % 251 for i in range(256)]) * (size // 256))
        for size in sizes
    )
    return WeightBucket(version=1, index=0, names=tuple(map(str, sizes)), tensors=tensors)


def segments() -> list[str]:
    return [path.name for path in FOLDER.glob(f"{segment_prefix('run')}*")]


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


async def test_two_owners_of_one_address_are_refused(world: World) -> None:
    """ZeroMQ would let the second one steal the messages of the first."""
    await world.bus("a")
    with pytest.raises(AddressError, match="another process owns"):
        await world.bus("a", incarnation=1)


async def test_a_client_without_a_mailbox_can_ask(world: World) -> None:
    """A command line attaches to a running job: it has no address, and answers find it."""
    b, guest = await world.bus("b"), await world.bus("guest")
    server = serve(b, lambda incoming: b.reply(incoming, Stacks(text=incoming.source)))
    answer = await guest.ask("b", StacksRequested(), deadline_s=5)
    assert answer.message == Stacks(text="guest")
    await ended(server)


async def test_junk_is_counted_and_harms_nobody(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    transport = a._host.transport
    for frames in ([b""], [b"\x80\x04K\x01."], [b"\x97" + b"\x01" * 7], [b"x" * 70000, b"y"]):
        transport.send("b", frames)
    told = a.tell("b", Begin(), deadline_s=5)
    assert (await b.receive()).message == Begin()
    await told
    assert b.statistics().mailbox.junk >= 3


async def test_the_statistics_can_be_written_down(world: World) -> None:
    """They travel in heartbeats."""
    import msgspec

    a = await world.bus("a")
    told = a.tell("b", Begin(), deadline_s=0.05)
    with pytest.raises(Undelivered):
        await told
    plain = msgspec.to_builtins(a.statistics())
    assert plain["links"][0]["peer"] == "b"
    assert plain["links"][0]["failed"] == 1
    assert plain["links"][0]["silence_s"] == -1.0
    assert isinstance(a, Bus)
