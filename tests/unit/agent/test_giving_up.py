"""An agent that waits no more for a reply: its session is told, and the reply is not judged."""

from __future__ import annotations

import asyncio
from typing import Any

from unit.agent.kit import QUESTION, FakeBus, ScriptedLine, order, reply
from unit.agent.test_episodes import hosted, run

from milepost.actors.agent import Episode, Part, Reply
from milepost.actors.agent.reply import Parts
from milepost.messages.bus import Incoming
from milepost.messages.session import ChatTurn, ClientGone
from milepost.messages.shared import Message


def silent_at(word: str) -> FakeBus:
    """Sessions that do not answer this question, and answer every other one."""

    def answer(message: Any) -> Any:
        assert isinstance(message, ChatTurn)
        if message.messages[0]["content"] == word:
            return None
        return reply("cat", generation=message.number)

    return FakeBus(answer)


async def test_a_chat_that_is_cancelled_stops_at_its_session_and_is_not_of_the_verdict() -> None:
    """Its reply may be sampled all the same, before any reply that the agent goes on to get."""

    async def gives_up(episode: Episode) -> None:
        chat = asyncio.create_task(episode.chat([{"role": "user", "content": "slow"}]))
        await bus.on_ask.wait()
        chat.cancel()
        await asyncio.wait({chat})
        await episode.chat([QUESTION])
        episode.report(reward=1.0)

    bus = silent_at("slow")
    ended = await run(hosted(gives_up, bus))
    assert (ended.status.value, ended.generation, ended.received) == ("completed", 2, (2,))
    gone = ClientGone(trajectory_id="g.0", number=1, reason="its agent waits no more")
    assert bus.told == [gone]


async def test_a_reply_that_crosses_the_end_of_the_wait_is_not_received() -> None:
    """It has come to this host, and the code never got it: nobody is told, nothing is judged."""

    async def is_cancelled(episode: Episode) -> None:
        chat = asyncio.create_task(episode.chat([{"role": "user", "content": "slow"}]))
        await bus.on_ask.wait()
        bus.futures[0].set_result(Incoming("session-0", 0, 1, 0, reply("late", generation=1)))
        chat.cancel()
        await asyncio.wait({chat})
        await episode.chat([QUESTION])
        episode.report(reward=1.0)

    bus = silent_at("slow")
    ended = await run(hosted(is_cancelled, bus))
    assert (ended.received, bus.told) == ((2,), [])


async def test_a_stream_that_is_left_at_a_part_has_no_reply() -> None:
    """Its reply is whole by then, and nobody has seen it."""
    answered = asyncio.Event()

    class Line(ScriptedLine):
        async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
            answer = await super().ask(turn, parts)
            answered.set()
            return answer

    episode = Episode(order(), Line(reply("cat", generation=1)))
    stream: Any = episode.stream([QUESTION])
    async for piece in stream:
        assert isinstance(piece, Part)
        await answered.wait()
        break
    await stream.aclose()
    assert (episode.record.received, episode.record.num_turns) == (set(), 0)


async def test_a_stream_that_is_read_to_its_end_has_its_reply() -> None:
    episode = Episode(order(), ScriptedLine(reply("cat", generation=1)))
    pieces = [piece async for piece in episode.stream([QUESTION])]
    assert isinstance(pieces[-1], Reply)
    assert (episode.record.received, episode.record.num_turns) == ({1}, 1)
