"""What every bus promises of delivery, over memory and over real ZeroMQ: the fake is held to it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from proc.bus.harness import LIMITS, World, collect, ended, number_of, numbered, serve, until

from milepost.messages.bus import (
    Bus,
    Incoming,
    Unanswered,
    Undelivered,
)
from milepost.messages.reader import Reader
from milepost.messages.supervisor import Begin, Stacks, StacksRequested


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
    with pytest.raises(Undelivered, match=r"b: EpochAnswer not sent: \d messages wait for b"):
        await told[5]
    for one in told[:5]:
        with pytest.raises(Undelivered):
            await one


async def test_a_full_link_tells_its_refusals_late_and_keeps_no_more_of_them_than_messages(
    world: World,
) -> None:
    """A sender that tries again at every refusal would spin; and what it spins on must not grow."""
    limits = replace(LIMITS, window_messages=2, outbox_messages_max=3)
    a = await world.bus("a", limits=limits)
    loop = asyncio.get_running_loop()
    told = [a.tell("b", numbered(i), deadline_s=60) for i in range(9)]
    assert told[8].done(), "no room among the refused either"
    assert not any(one.done() for one in told[:8])
    begun = loop.time()
    await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED, timeout=0)
    await until(told[5].done, "the refusal")
    assert loop.time() - begun > 0.9
    with pytest.raises(Undelivered, match="not sent: 3 messages wait for b already") as refused:
        await told[5]
    assert refused.value.no_room
    with pytest.raises(Undelivered):
        await told[8]


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


async def test_answers_are_kept_until_they_are_acknowledged_and_no_longer(world: World) -> None:
    """They ride on the next question, or on an acknowledgement of their own after a moment."""
    a, b = await world.bus("a"), await world.bus("b")
    server = serve(b, lambda incoming: b.reply(incoming, incoming.message))
    for i in range(300):
        await a.ask("b", numbered(i), deadline_s=60)
        assert b.statistics().mailbox.replies_unacked <= 2
    await until(lambda: b.statistics().mailbox.replies_unacked == 0, "the last acknowledgement")
    await asyncio.gather(*(a.ask("b", numbered(i), deadline_s=60) for i in range(300)))
    await until(lambda: b.statistics().mailbox.replies_unacked == 0, "the last acknowledgement")
    await ended(server)


async def test_only_a_question_can_be_answered(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    told = a.tell("b", Begin(), deadline_s=5)
    incoming = await b.receive()
    with pytest.raises(ValueError, match="a did not ask"):
        b.reply(incoming, Stacks(text=""))
    await told


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


async def test_a_full_inbox_does_not_turn_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is not read stays readable: watching it would burn a core."""
    reads = 0
    read = Reader._read

    def counted(reader: Reader) -> None:
        nonlocal reads
        reads += 1
        read(reader)

    monkeypatch.setattr(Reader, "_read", counted)
    world = World("zeromq", tmp_path)
    limits = replace(LIMITS, inbox_messages_max=4, probe_s=60)
    a, b = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    told = [a.tell("b", numbered(i), deadline_s=10) for i in range(20)]
    await until(lambda: b.statistics().mailbox.paused, "a full inbox")
    reads = 0
    turns = 0
    while turns < 500:
        turns += 1
        await asyncio.sleep(0)
    assert reads < 20
    taken = [number_of(await b.receive()) for _ in range(20)]
    assert taken == list(range(20))
    await asyncio.gather(*told)
    await world.close()
