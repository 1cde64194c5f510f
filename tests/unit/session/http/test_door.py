"""The door between HTTP and the core: what happens when client and answer cross."""

from __future__ import annotations

import asyncio
from typing import Any

from milepost.actors.effects import Reply
from milepost.actors.session.doors import DoorTurn
from milepost.actors.session.http.door import Door, Exchange
from milepost.messages.session import ChatRefused

ANSWER = ChatRefused(kind="engine", reason="no engine is left")


class Core:
    """Nothing of a core is asked but what it is given."""

    def __init__(self) -> None:
        self.events: list[Any] = []


def turn() -> DoorTurn:
    return DoorTurn(trajectory_id="g.0", messages=[{"role": "user", "content": "2 + 2?"}], tools=[])


async def client_of(exchange: Exchange) -> None:
    await exchange.answer


async def test_a_client_may_go_in_the_very_moment_of_its_answer() -> None:
    """The wait is cancelled at once, the client's goodbye comes a turn of the loop later.

    An answer that comes between the two has nobody to go to. It must not end the session actor,
    and every other conversation with it.
    """
    core: Any = Core()
    door = Door(core, core.events.append)
    exchange = door.ask(turn())
    client = asyncio.create_task(client_of(exchange))
    await asyncio.sleep(0)
    client.cancel()
    assert door.take_out([Reply(exchange.request, ANSWER)]) == []
    await asyncio.wait({client})
    assert client.cancelled()
    door.gone(exchange, turn(), "its client closed the connection")
    assert len(door) == 0
    assert len(core.events) == 1, "the core is told of no client that it has answered"


async def test_a_client_that_waits_gets_its_answer() -> None:
    core: Any = Core()
    door = Door(core, core.events.append)
    exchange = door.ask(turn())
    assert door.take_out([Reply(exchange.request, ANSWER)]) == []
    assert await exchange.answer is ANSWER
