"""A network that loses and repeats, on purpose and in virtual time: delivery stays once, in order.

Over memory only: the transport shows every transmission to a filter, hypothesis says what becomes
of it and shrinks a failure to the fewest faults. No real time passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proc.bus.harness import LIMITS, collect, ended, number_of, numbered, serve, until, virtually

from milepost.messages.bus import Bus, BusLimits, Incoming, Unanswered, Undelivered
from milepost.messages.bus.delivery import Kind, unpack_delivery
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.bus.transport import Frames
from milepost.messages.supervisor import Begin

FATES = st.lists(st.integers(0, 2), max_size=60)
"""How often each of the first transmissions arrives; all later ones arrive once."""


@dataclass
class Fates:
    """A filter that follows a list."""

    copies: list[int]
    seen: int = field(default=0)

    def __call__(self, sender: str, receiver: str, frames: Frames) -> Iterable[Frames]:
        del sender, receiver
        position, self.seen = self.seen, self.seen + 1
        return (frames,) * (self.copies[position] if position < len(self.copies) else 1)


async def pair(network: MemoryNetwork, limits: BusLimits = LIMITS) -> tuple[Bus, Bus]:
    a, b = [
        await Bus.over(network.transport(name), name=name, incarnation=0, run_id="r", limits=limits)
        for name in "ab"
    ]
    return a, b


@given(copies=FATES, window=st.integers(1, 8))
def test_whatever_is_lost_or_repeated_each_message_is_taken_once_in_order(
    copies: list[int], window: int
) -> None:
    async def story() -> None:
        limits = replace(LIMITS, window_messages=window)
        a, b = await pair(MemoryNetwork("ab", filter=Fates(copies)), limits)
        got: list[Incoming] = []
        taker = collect(b, got)
        await asyncio.gather(*(a.tell("b", numbered(i), deadline_s=600) for i in range(12)))
        assert [number_of(one) for one in got] == list(range(12))
        assert await a.close(deadline_s=60) == ()
        await ended(taker)
        await b.close(deadline_s=60)

    virtually(story)


@given(copies=FATES)
def test_whatever_is_lost_or_repeated_each_question_is_answered_once(copies: list[int]) -> None:
    async def story() -> None:
        a, b = await pair(MemoryNetwork("ab", filter=Fates(copies)))
        asked: list[int] = []

        def answer(incoming: Incoming) -> None:
            asked.append(number_of(incoming))
            b.reply(incoming, numbered(number_of(incoming) + 100))

        server = serve(b, answer)
        questions = [a.ask("b", numbered(i), deadline_s=600) for i in range(8)]
        answers = await asyncio.gather(*questions)
        assert [number_of(one) for one in answers] == list(range(100, 108))
        assert asked == list(range(8))
        assert a.statistics().links[0].late_answers == 0
        await ended(server)
        await b.close(deadline_s=600)
        assert b.statistics().mailbox.replies_unacked == 0
        await a.close(deadline_s=60)

    virtually(story)


@given(copies=FATES, taken_by_old=st.integers(0, 10), steps=st.integers(0, 30))
def test_over_a_restart_nothing_is_lost_and_nothing_acknowledged_comes_again(
    copies: list[int], taken_by_old: int, steps: int
) -> None:
    """The old incarnation dies at any moment, having taken any part, on a bad network."""

    async def story() -> None:
        network = MemoryNetwork("ab", filter=Fates(copies))
        a, old = await pair(network)
        told = [a.tell("b", numbered(i), deadline_s=600) for i in range(10)]
        before: list[Incoming] = []
        taker = asyncio.create_task(_take(old, taken_by_old, before))
        for _ in range(steps):
            await asyncio.sleep(0)
        acknowledged = [i for i, one in enumerate(told) if one.done()]
        await ended(taker)
        old._host.transport.kill()  # type: ignore[attr-defined]
        new = await Bus.over(
            network.transport("b"), name="b", incarnation=1, run_id="r", limits=LIMITS
        )
        after: list[Incoming] = []
        second = collect(new, after)
        await asyncio.gather(*told)
        numbers = [number_of(one) for one in after]
        assert numbers == sorted(set(numbers)), "twice or out of order after the restart"
        assert not set(acknowledged) & set(numbers), "acknowledged, and delivered again"
        assert {number_of(one) for one in before} | set(numbers) == set(range(10))
        assert set(acknowledged) <= {number_of(one) for one in before}
        await ended(second)
        await a.close(deadline_s=60)
        await new.close(deadline_s=60)
        await old.close(deadline_s=0.01)

    virtually(story)


async def _take(bus: Bus, count: int, into: list[Incoming]) -> None:
    while len(into) < count:
        into.append(await bus.receive())


@given(deadlines=st.lists(st.integers(1, 40), min_size=1, max_size=15), pause=st.integers(1, 50))
def test_every_wait_ends_at_its_deadline_and_told_means_taken(
    deadlines: list[int], pause: int
) -> None:
    """A receiver that stalls: some messages are given up before it wakes, the others are taken."""

    async def story() -> None:
        a, b = await pair(MemoryNetwork("ab"), replace(LIMITS, window_messages=4))
        loop = asyncio.get_running_loop()
        began = loop.time()
        told = [
            a.tell("b", numbered(i), deadline_s=ticks / 10) for i, ticks in enumerate(deadlines)
        ]
        ends: dict[int, float] = {}

        def note(i: int) -> Callable[[object], None]:
            return lambda _: ends.update({i: loop.time() - began})

        for i, one in enumerate(told):
            one.add_done_callback(note(i))
        got: list[Incoming] = []
        awake: asyncio.Future[None] = loop.create_future()
        loop.call_later(pause / 10 + 0.05, awake.set_result, None)
        await awake
        taker = collect(b, got)
        results = await asyncio.gather(*told, return_exceptions=True)
        taken = [number_of(one) for one in got]
        assert taken == sorted(set(taken))
        for i, result in enumerate(results):
            assert (i in taken) == (result is None)
            if result is not None:
                assert isinstance(result, Undelivered)
                assert deadlines[i] / 10 <= ends[i] <= deadlines[i] / 10 + 0.01
        await ended(taker)
        await a.close(deadline_s=60)
        await b.close(deadline_s=60)

    virtually(story)


def test_a_lost_refusal_does_not_make_a_tell_look_delivered() -> None:
    """The acknowledgement that comes after it says that something is missing before it."""

    async def story() -> None:
        lost: list[Kind] = []

        def lose_first_refusal(sender: str, _receiver: str, frames: Frames) -> Iterable[Frames]:
            kind = unpack_delivery(frames[0]).kind
            if sender == "b" and kind is Kind.REFUSED and not lost:
                lost.append(kind)
                return ()
            return (frames,)

        network = MemoryNetwork("ab", filter=lose_first_refusal)
        a = await Bus.over(network.transport("a"), name="a", incarnation=0, run_id="other")
        b = await Bus.over(network.transport("b"), name="b", incarnation=0, run_id="r")
        taker = collect(b, [])
        first = a.tell("b", Begin(), deadline_s=60)
        with pytest.raises(Undelivered, match="belongs to run other"):
            await first
        assert lost == [Kind.REFUSED]
        await ended(taker)
        await a.close(deadline_s=60)
        await b.close(deadline_s=60)

    virtually(story)


def test_an_answer_given_up_is_not_waited_for_by_later_ones() -> None:
    """The first answer is never sent in time; the second must not queue behind its number."""

    async def story() -> None:
        a, b = await pair(MemoryNetwork("ab"))
        first = a.ask("b", numbered(1), deadline_s=1)
        second = a.ask("b", numbered(2), deadline_s=60)
        questions = [await b.receive(), await b.receive()]
        with pytest.raises(Unanswered, match=r"taken but not answered within 1\.0 s"):
            await first
        b.reply(questions[0], numbered(10))
        b.reply(questions[1], numbered(20))
        assert number_of(await second) == 20
        await b.close(deadline_s=60)
        await a.close(deadline_s=60)

    virtually(story)


def test_a_stopped_peer_is_probed_and_not_flooded() -> None:
    """A process under SIGSTOP for ten minutes: a probe a second at most, no message twice."""

    async def story() -> None:
        sent: list[Kind] = []

        def count(sender: str, _receiver: str, frames: Frames) -> Iterable[Frames]:
            if sender == "a":
                sent.append(unpack_delivery(frames[0]).kind)
            return (frames,)

        network = MemoryNetwork("ab", filter=count)
        limits = replace(LIMITS, probe_s=1.0)
        a = await Bus.over(
            network.transport("a"), name="a", incarnation=0, run_id="r", limits=limits
        )
        asked = a.ask("b", numbered(1), deadline_s=600)
        with pytest.raises(Unanswered, match=r"was not taken within 600\.0 s; b was never heard"):
            await asked
        assert sent.count(Kind.ASK) == 1
        assert sent.count(Kind.PROBE) <= 600
        await a.close(deadline_s=1)

    virtually(story)


def test_the_memory_of_senders_is_bounded() -> None:
    """A thousand attached clients come and go; the mailbox remembers the last few."""

    async def story() -> None:
        network = MemoryNetwork("b")
        limits = replace(LIMITS, links_max=10)
        b = await Bus.over(
            network.transport("b"), name="b", incarnation=0, run_id="r", limits=limits
        )
        server = serve(b, lambda incoming: b.reply(incoming, numbered(1)))
        for i in range(50):
            guest = await Bus.over(
                network.transport(f"guest-{i}"), name=f"guest-{i}", incarnation=0, run_id="r"
            )
            await guest.ask("b", numbered(i), deadline_s=1)
            await guest.close(deadline_s=1)
            later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(2, later.set_result, None)
            await later
        assert b.statistics().mailbox.senders <= 10
        await ended(server)
        await b.close(deadline_s=1)

    virtually(story)


async def test_the_canary_dies() -> None:
    """A bus that believes every loss to be a delivery would pass above; this one must fail."""
    network = MemoryNetwork("ab", filter=lambda _s, _r, frames: (frames,) * 0)
    a, b = await pair(network)
    told = a.tell("b", numbered(1), deadline_s=0.2)
    with pytest.raises(Undelivered):
        await told
    await until(lambda: a.statistics().links[0].failed == 1, "the failure to be counted")
    await a.close(deadline_s=0.01)
    await b.close(deadline_s=0.01)
