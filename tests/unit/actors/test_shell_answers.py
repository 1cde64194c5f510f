"""The shell between a bus and a core: answers, which do not come the way of messages."""

from __future__ import annotations

import asyncio

from proc.bus.harness import until
from unit.actors.test_shell import LIMITS, NAMES, Listener, _spec, open_buses

from milepost.actors.context import ActorContext
from milepost.actors.effects import Answered, Ask, Effect, Event, Received
from milepost.messages.bus import Bus
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.engine import EpochAnswer
from milepost.messages.supervisor import Begin, PeerRestarted


class Curious(Listener):
    """Asks the peer whatever it is told, and what it was answered first."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        super().handle(event, now_s)
        match event:
            case Received("supervisor"):
                return []
            case Received(_, word):
                return [Ask("peer", word, "first", 60.0)]
            case Answered("first", _, word):
                return [Ask("peer", word, "second", 60.0)]
            case _:
                return []


async def test_a_death_is_heard_of_before_an_answer_of_the_next_life() -> None:
    """Answers do not come the way of messages: a trainer took the batch of a buffer that had died
    for the mistake of one that had not."""
    network = MemoryNetwork(NAMES)
    buses = await open_buses(network)
    context = ActorContext(_spec(), buses["asker"])
    core = Curious(4)
    serving = asyncio.create_task(context.serve(core))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    words = [EpochAnswer(version=number, ok=True) for number in range(3)]
    await buses["peer"].tell("asker", words[0], deadline_s=5)
    buses["peer"].reply(await buses["peer"].receive(), words[1])
    async with asyncio.timeout(5):
        await until(lambda: len(core.told) == 2, "the first answer")
    await buses["peer"].close(deadline_s=0.05)
    buses["peer"] = await Bus.over(
        network.transport("peer"), name="peer", incarnation=1, run_id="run", limits=LIMITS
    )
    buses["peer"].reply(await buses["peer"].receive(), words[2])
    async with asyncio.timeout(5):
        await core.is_done.wait()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    assert core.told == [
        Received("peer", words[0]),
        Answered("first", "peer", words[1]),
        Received("supervisor", PeerRestarted(actor="peer", incarnation=1)),
        Answered("second", "peer", words[2]),
    ]
