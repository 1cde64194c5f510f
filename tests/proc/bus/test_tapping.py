"""Copies of a bus's traffic: each message once, bounded, and only while somebody reads them."""

from __future__ import annotations

from proc.bus.harness import RUN_ID, World, collect, ended, numbered, serve, until, virtually

from milepost.messages.bus import Bus
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.bus.tapping import BYTES_MAX, COPIES_MAX, LEASE_S, TAPS_MAX
from milepost.messages.engine import EpochAnswer
from milepost.messages.supervisor import Refused, Tapped, TapRead

BOTH = TapRead(actor="a", tap="t", received=True)


def tapped(bus: Bus, wanted: TapRead = BOTH) -> Tapped:
    answer = bus.read_tap(wanted)
    assert isinstance(answer, Tapped)
    return answer


def copies(bus: Bus) -> bool:
    return bus._host.copy is not None


async def test_both_ends_of_an_edge_see_each_message_once(world: World) -> None:
    """Questions and answers, as they are on the wire, on either side of either transport."""
    a, b = await world.bus("a"), await world.bus("b")
    assert tapped(a).copies == tapped(b).copies == []
    answering = serve(b, lambda one: b.reply(one, numbered(2)) if one.wants_reply else None)
    await a.tell("b", numbered(0), deadline_s=5)
    await a.ask("b", numbered(1), deadline_s=5)
    await ended(answering)
    at_a, at_b = tapped(a).copies, tapped(b).copies
    assert [(one.kind, one.outgoing, one.peer) for one in at_a] == [
        ("tell", True, "b"),
        ("ask", True, "b"),
        ("reply", False, "b"),
    ]
    assert [(one.kind, one.outgoing, one.peer) for one in at_b] == [
        ("tell", False, "a"),
        ("ask", False, "a"),
        ("reply", True, "a"),
    ]
    wire = [(one.header, one.body, one.num_bytes) for one in at_a]
    assert wire == [(one.header, one.body, one.num_bytes) for one in at_b]


async def test_a_tap_sees_only_the_edge_it_was_asked_for(world: World) -> None:
    a, b, c = await world.bus("a"), await world.bus("b"), await world.bus("c")
    to_b = TapRead(actor="a", tap="t", peers="b")
    assert tapped(a, to_b).copies == []
    taking = [collect(one, []) for one in (a, b, c)]
    for sender, receiver in ((a, "b"), (a, "c"), (b, "a")):
        await sender.tell(receiver, numbered(1), deadline_s=5)
    await ended(*taking)
    assert [(one.peer, one.outgoing) for one in tapped(a, to_b).copies] == [("b", True)]


async def test_what_finds_no_room_is_counted_and_the_traffic_goes_on(world: World) -> None:
    a, b = await world.bus("a"), await world.bus("b")
    tapped(a)
    taking = collect(b, [])
    for number in range(COPIES_MAX + 5):
        await a.tell("b", numbered(number), deadline_s=5)
    first = tapped(a)
    assert (len(first.copies), first.dropped, first.left) == (COPIES_MAX, 5, 0)
    large = EpochAnswer(version=1, ok=False, reason="x" * 60_000)
    for _ in range(BYTES_MAX // 60_000 + 3):
        await a.tell("b", large, deadline_s=5)
    await ended(taking)
    answers = [tapped(a)]
    while answers[-1].left:
        answers.append(tapped(a))
    assert len(answers) > 1, "an answer is bounded, too"
    assert sum(one.dropped for one in answers) >= 2


def test_a_reader_that_is_gone_costs_nothing_any_more() -> None:
    """The lease ends by the clock alone, without another message."""

    async def story() -> None:
        network = MemoryNetwork("ab")
        a = await Bus.over(network.transport("a"), name="a", incarnation=0, run_id=RUN_ID)
        assert not copies(a)
        began = a._loop.time()
        assert tapped(a).opened
        assert copies(a)
        await until(lambda: not copies(a), "the end of the lease", 2 * LEASE_S)
        assert LEASE_S <= a._loop.time() - began < LEASE_S + 0.1
        tapped(a, TapRead(actor="a", tap="t"))
        tapped(a, TapRead(actor="a", tap="t", close=True))
        assert not copies(a)
        await a.close()

    virtually(story)


async def test_a_bus_has_room_for_few_readers(world: World) -> None:
    a = await world.bus("a")
    for number in range(TAPS_MAX):
        tapped(a, TapRead(actor="a", tap=str(number)))
    refused = a.read_tap(TapRead(actor="a", tap="one more"))
    assert refused == Refused(reason=f"a has {TAPS_MAX} taps already")
