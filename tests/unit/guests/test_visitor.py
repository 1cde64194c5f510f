"""A guest's several chats, those that it gives up, and those that the run stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from unit.agent.kit import order, refused, reply
from unit.guests.test_door import Mailbox

from milepost.actors.agent import Agent, Episode
from milepost.actors.agent.episode import Record
from milepost.actors.agent.errors import EpisodeStopped
from milepost.actors.agent.reply import Parts
from milepost.actors.guests import visitor
from milepost.actors.guests.door import Door
from milepost.actors.guests.invitation import Invitation
from milepost.actors.guests.lobby import Lobby
from milepost.actors.guests.visitor import Visitor
from milepost.messages.bus import Incoming
from milepost.messages.session import ChatTurn
from milepost.messages.shared import Message

Code = Callable[[Episode], Awaitable[None]]


class Session:
    """Answers a chat, by the words of its first message, when the test says so."""

    def __init__(self) -> None:
        self.chats: dict[str, asyncio.Future[Message]] = {}
        self.changed = asyncio.Event()

    def reported(self, record: Record) -> None:
        pass

    async def ask(self, turn: ChatTurn, parts: Parts | None = None) -> Message:
        del parts
        word = turn.messages[0]["content"]
        self.chats[word] = asyncio.get_running_loop().create_future()
        self.changed.set()
        try:
            return await self.chats[word]
        finally:
            self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


class Coded(Agent):
    """Runs a function, and counts how often."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self.num_runs = 0

    async def run(self, episode: Episode) -> None:
        self.num_runs += 1
        await self._code(episode)


class GuestBus:
    """A guest's way to the door's mailbox."""

    def __init__(self, box: Mailbox, serving: asyncio.Task[None]) -> None:
        self._box, self._serving = box, serving

    def ask(self, to: str, message: Message, *, deadline_s: float) -> asyncio.Future[Incoming]:
        assert deadline_s > 0
        asked = self._box.ask(message, self._serving)

        async def answered() -> Incoming:
            return Incoming(to, 0, 1, 0, await asked)

        return asyncio.ensure_future(answered())

    async def close(self, *, deadline_s: float) -> None:
        assert deadline_s > 0


class Played:
    """One episode that is with a guest."""

    def __init__(self, session: Session, agent: Coded, guest: Visitor, episode: Episode) -> None:
        self.session, self.agent, self.guest, self.episode = session, agent, guest, episode
        self.hosting: asyncio.Task[None]


@asynccontextmanager
async def played(
    code: Code, monkeypatch: pytest.MonkeyPatch, *, takes_parallel: bool
) -> AsyncIterator[Played]:
    """A guest whose code plays an episode at a door."""
    box: Any = Mailbox()
    lobby = Lobby(guests_max=4, episodes_max=4, silence_s=600.0, heartbeat_s=300.0)
    door = Door(
        box,
        lobby,
        heartbeat_s=300.0,
        silence_s=600.0,
        data_options={},
        takes_parallel=takes_parallel,
    )
    serving = asyncio.create_task(door.serve())

    class Opened:
        @staticmethod
        async def open(**options: Any) -> GuestBus:
            assert options["incarnation"] == 0
            return GuestBus(box, serving)

    monkeypatch.setattr(visitor, "Bus", Opened)
    session, agent = Session(), Coded(code)
    invitation = Invitation(endpoint="ipc://x", run_id="r")
    guest = Visitor(agent, invitation, name="python", episodes_max=1)
    game = Played(session, agent, guest, Episode(order(), session))
    visiting = asyncio.create_task(guest.run())
    await door.room_other_than(0)
    game.hosting = asyncio.create_task(door.host(game.episode))
    try:
        yield game
    finally:
        guest.leave("the test is over")
        await asyncio.wait({visiting}, timeout=30.0)
        assert visiting.done()
        serving.cancel()
        await asyncio.wait({serving})


def user(word: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": word}]


async def asks_both(episode: Episode) -> None:
    one, two = await asyncio.gather(episode.chat(user("one")), episode.chat(user("two")))
    episode.report(reward=1.0, info={"said": [one.text, two.text]})


async def test_chats_at_the_same_time_go_on_beside_each_other_in_a_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session makes siblings of them; the door stopped the older one, and with it the run."""
    async with played(asks_both, monkeypatch, takes_parallel=True) as game:
        await game.session.until(lambda: len(game.session.chats) == 2)
        game.session.chats["two"].set_result(reply("2", generation=2))
        game.session.chats["one"].set_result(reply("1", generation=1))
        await game.hosting
        record = game.episode.record
        assert (record.reward, record.info, record.received) == (1.0, {"said": ["1", "2"]}, {1, 2})


async def test_a_stop_that_the_door_did_not_order_goes_back_and_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guest kept it to itself, and was given the same episode again, over the same session."""
    async with played(asks_both, monkeypatch, takes_parallel=False) as game:
        await asyncio.wait({game.hosting})
        with pytest.raises(EpisodeStopped, match="a newer request of this episode took its place"):
            game.hosting.result()
        assert game.agent.num_runs == 1
    assert game.guest.counts == {"cancelled": 1}


async def test_a_session_that_is_closed_sends_the_episode_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asks(episode: Episode) -> None:
        await episode.chat(user("one"))

    async with played(asks, monkeypatch, takes_parallel=False) as game:
        await game.session.until(lambda: "one" in game.session.chats)
        game.session.chats["one"].set_result(refused("closed"))
        await asyncio.wait({game.hosting})
        with pytest.raises(EpisodeStopped, match="because of closed"):
            game.hosting.result()
        assert game.agent.num_runs == 1


@pytest.mark.parametrize("takes_parallel", [True, False])
async def test_a_chat_that_a_guest_gives_up_is_stopped_behind_the_door(
    monkeypatch: pytest.MonkeyPatch, *, takes_parallel: bool
) -> None:
    """The door would wait for the reply, count it as received, and hold an engine for it."""
    asked = asyncio.Event()

    async def gives_up(episode: Episode) -> None:
        chat = asyncio.create_task(episode.chat(user("one")))
        await asked.wait()
        chat.cancel()
        await asyncio.wait({chat})
        await episode.chat(user("two"))
        episode.report(reward=1.0)

    async with played(gives_up, monkeypatch, takes_parallel=takes_parallel) as game:
        session = game.session
        await session.until(lambda: "one" in session.chats)
        asked.set()
        await session.until(session.chats["one"].cancelled)
        await session.until(lambda: "two" in session.chats)
        session.chats["two"].set_result(reply("2", generation=2))
        await game.hosting
        assert game.episode.record.received == {2}


async def test_what_reached_the_door_and_not_the_guest_is_not_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their words crossed: the guest's report says which replies it has."""
    done = asyncio.Event()

    async def asks(episode: Episode) -> None:
        await episode.chat(user("one"))
        await done.wait()
        episode.report(reward=1.0)

    async with played(asks, monkeypatch, takes_parallel=True) as game:
        await game.session.until(lambda: "one" in game.session.chats)
        game.session.chats["one"].set_result(reply("1", generation=1))
        game.episode.record.received.add(2)
        done.set()
        await game.hosting
        assert game.episode.record.received == {1}
