"""What every bus promises when a side restarts, refuses, or ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from proc.bus.harness import LIMITS, World, collect, ended, number_of, numbered, serve, until

from milepost.messages import registry
from milepost.messages.bus import (
    AddressError,
    BusClosed,
    Incoming,
    Unanswered,
    Undelivered,
)
from milepost.messages.shared import Message
from milepost.messages.supervisor import Begin, EventReported, Stacks, StacksRequested


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
    """Nobody will ever answer it, and waiting for the deadline would stall the run.

    The new connection tells, not the next probe: that one is a minute away here.
    """
    limits = replace(LIMITS, probe_s=60)
    a, old = await world.bus("a", limits=limits), await world.bus("b", limits=limits)
    taken = a.ask("b", numbered(1), deadline_s=60)
    assert number_of(await old.receive()) == 1
    await until(lambda: a.statistics().links[0].unacked == 0, "the question to be taken")
    waiting = a.ask("b", numbered(2), deadline_s=60)
    await world.kill(old)
    new = await world.bus("b", incarnation=1, limits=limits)
    server = serve(new, lambda incoming: new.reply(incoming, numbered(number_of(incoming) * 10)))
    with pytest.raises(
        Unanswered, match=r"EpochAnswer was taken by incarnation 0 of b, which is gone; inc.* 1 "
    ):
        await taken
    assert number_of(await waiting) == 20
    await ended(server)


async def test_two_probes_that_meet_a_new_incarnation_do_not_bring_the_old_stream_back(
    world: World,
) -> None:
    """Both ask where the dead one stood. The second answer must not say it of the new one.

    Else its first answers are taken for repeats of the old one's, and acknowledged unread: every
    question after a restart is taken and never answered.
    """
    a, old = await world.bus("a"), await world.bus("b")
    server = serve(old, lambda incoming: old.reply(incoming, numbered(number_of(incoming))))
    for i in range(5):
        await a.ask("b", numbered(i), deadline_s=5)
    await ended(server)
    # Sent again as soon as the new incarnation is known: that is what its stream begins with.
    asked = [a.ask("b", numbered(i), deadline_s=5) for i in range(3)]
    await world.kill(old)
    new = await world.bus("b", incarnation=1)
    link = a._links.by_peer["b"]
    for _ in range(2):
        link._probe(0.0)
    server = serve(new, lambda incoming: new.reply(incoming, numbered(number_of(incoming) * 10)))
    assert [number_of(one) for one in await asyncio.gather(*asked)] == [0, 10, 20]
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


@pytest.mark.parametrize("took", [True, False])
async def test_a_bus_knows_whether_a_life_that_died_had_taken_anything(
    world: World, *, took: bool
) -> None:
    """What an actor gave to the dead is lost; what it gave to nobody goes to the living."""
    a, old = await world.bus("a"), await world.bus("b")
    if took:
        told = a.tell("b", numbered(0), deadline_s=5)
        await old.receive()
        await told
    await world.kill(old)
    new = await world.bus("b", incarnation=1)
    server = serve(new, lambda incoming: new.reply(incoming, numbered(2)))
    assert not a.has_died("b"), "nobody has heard of it"
    link_to = a.ask("b", numbered(1), deadline_s=5)
    a._links.by_peer["b"]._probe(0.0)
    assert number_of(await link_to) == 2
    assert a.has_died("b") == took
    await ended(server)


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


class OnlyHere(Message, kw_only=True):
    """A type that the receiver does not know."""


@pytest.mark.parametrize("way", ["tell", "ask"])
async def test_an_unknown_type_is_refused_by_name(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's message is answered, never ignored; what follows it is delivered."""
    a, b = await world.bus("a"), await world.bus("b")
    got: list[Incoming] = []
    here = registry.Registered("OnlyHere", OnlyHere, has_bulk=False, is_closed=True)
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
    with pytest.raises(Undelivered, match="a belongs to run other, b to test-"):
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


async def test_closing_does_not_wait_for_who_is_gone(world: World) -> None:
    """A run stops stage by stage; were the dead waited for, every stage would take the longest."""
    a, b = await world.bus("a"), await world.bus("b")
    asked = [b.ask("a", StacksRequested(), deadline_s=600) for _ in range(2)]
    incoming = [await a.receive() for _ in asked]
    server = collect(b, [])
    await a.tell("b", Begin(), deadline_s=600)
    await ended(server)
    await world.kill(b)
    await asyncio.gather(*asked, return_exceptions=True)
    await until(lambda: a._links.by_peer["b"].is_gone, "the end of the connection")
    told = a.tell("b", Begin(), deadline_s=600)
    for one in incoming:
        a.reply(one, Stacks(text="too late"))
    begun = asyncio.get_running_loop().time()
    failed = await a.close(deadline_s=40)
    assert asyncio.get_running_loop().time() - begun < 20
    assert [str(one) for one in failed] == ["b: Begin was given up: a closed its bus"]
    with pytest.raises(Undelivered):
        await told


async def test_a_receiver_that_waits_hears_of_the_end(world: World) -> None:
    b = await world.bus("b")
    receiving = asyncio.create_task(b.receive())
    await asyncio.sleep(0)
    await b.close(deadline_s=0.1)
    with pytest.raises(BusClosed, match="the bus of b was closed"):
        await receiving


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


async def test_closing_does_not_wait_for_a_peer_that_was_dead_before_it_was_told_anything(
    world: World,
) -> None:
    """A link that was never connected could be one to a peer that starts; somebody knows better."""
    a = await world.bus("a")
    told = [a.tell(name, Begin(), deadline_s=600) for name in ("b", "c")]
    a.will_not_return(("b", "c"))
    begun = asyncio.get_running_loop().time()
    failed = await a.close(deadline_s=60)
    assert asyncio.get_running_loop().time() - begun < 30, "it has waited for its deadline"
    assert [one.to for one in failed] == ["b", "c"]
    await asyncio.gather(*told, return_exceptions=True)
