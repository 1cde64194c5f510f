"""The door does not fall with a guest: what a report carries is that episode's affair alone."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from unit.agent.kit import ScriptedLine, order

from milepost.actors.agent import Episode
from milepost.actors.agent.errors import EpisodeStopped
from milepost.actors.guests import door as doors
from milepost.actors.guests.door import Door
from milepost.actors.guests.lobby import Lobby
from milepost.messages.bus import Incoming
from milepost.messages.guests import (
    EpisodesGiven,
    JoinRun,
    LeaveRun,
    ReportEpisode,
    ReportTaken,
    RunJoined,
    RunLeft,
    TakeEpisodes,
)
from milepost.messages.shared import Message


class Mailbox:
    """Questions as a guest asks them, and the answers that the door gives."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[Incoming] = asyncio.Queue(maxsize=16)
        self.answers: dict[int, asyncio.Future[Message]] = {}

    async def receive(self) -> Incoming:
        return await self.questions.get()

    def reply(self, incoming: Incoming, message: Message) -> None:
        self.answers[incoming.message_id].set_result(message)

    async def close(self, *, deadline_s: float) -> None:
        assert deadline_s > 0

    async def ask(self, message: Message, serving: asyncio.Task[None]) -> Message:
        number = len(self.answers) + 1
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.answers[number] = answer
        self.questions.put_nowait(Incoming("guest", 0, number, 0, message, wants_reply=True))
        waited: set[asyncio.Future[Any]] = {answer, serving}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        assert answer.done(), "the door has fallen"
        return answer.result()


@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize("value", [msgspec.msgpack.Ext(7, b"x"), {None: 1}, {True: 1}])
async def test_a_report_that_is_no_json_fails_its_episode_and_nothing_else(
    value: object, *, is_final: bool
) -> None:
    """Clients of other languages send what MessagePack can hold, and JSON cannot."""
    bus: Any = Mailbox()
    lobby = Lobby(guests_max=4, episodes_max=4, silence_s=600.0, heartbeat_s=300.0)
    door = Door(
        bus,
        lobby,
        heartbeat_s=300.0,
        silence_s=600.0,
        data_options={},
        takes_parallel=False,
    )
    serving = asyncio.create_task(door.serve())
    joined = await bus.ask(JoinRun(name="ts", episodes_max=1), serving)
    assert isinstance(joined, RunJoined)
    episode = Episode(order(), ScriptedLine())
    hosting = asyncio.create_task(door.host(episode))
    taking = TakeEpisodes(token=joined.token, episodes_max=1, running=())
    given = await bus.ask(taking, serving)
    assert isinstance(given, EpisodesGiven)
    (one,) = given.episodes

    def report(**fields: Any) -> ReportEpisode:
        return ReportEpisode(token=joined.token, episode_id=one.episode_id, **fields)

    taken = await bus.ask(report(reward=1.0, info={"x": value}, is_final=is_final), serving)
    assert taken == ReportTaken(counts=True)
    if not is_final:
        assert await bus.ask(report(reward=1.0), serving) == ReportTaken(counts=True)
    await asyncio.wait({hosting}, timeout=30.0)
    assert hosting.done()
    assert "bad report" in episode.record.bad_report
    assert not serving.done()
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_guest_says_no_endless_goodbye() -> None:
    """Its reason goes back with each of its episodes, into journals and events."""
    bus: Any = Mailbox()
    lobby = Lobby(guests_max=4, episodes_max=4, silence_s=600.0, heartbeat_s=300.0)
    door = Door(
        bus,
        lobby,
        heartbeat_s=300.0,
        silence_s=600.0,
        data_options={},
        takes_parallel=False,
    )
    serving = asyncio.create_task(door.serve())
    joined = await bus.ask(JoinRun(name="ts", episodes_max=1), serving)
    hosting = asyncio.create_task(door.host(Episode(order(), ScriptedLine())))
    await bus.ask(TakeEpisodes(token=joined.token, episodes_max=1, running=()), serving)
    left = await bus.ask(LeaveRun(token=joined.token, reason="x" * 100_000), serving)
    assert left == RunLeft(num_episodes=1)
    await asyncio.wait({hosting}, timeout=30.0)
    error = hosting.exception()
    assert isinstance(error, EpisodeStopped)
    assert len(str(error)) < 3000
    serving.cancel()
    await asyncio.wait({serving})


async def test_a_door_that_closes_leaves_no_wait_for_guests_that_do_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They had their time to hear the goodbye; the wait for them went on for ever."""
    monkeypatch.setattr(doors, "FAREWELL_S", 0.01)
    bus: Any = Mailbox()
    lobby = Lobby(guests_max=4, episodes_max=4, silence_s=600.0, heartbeat_s=300.0)
    door = Door(
        bus,
        lobby,
        heartbeat_s=300.0,
        silence_s=600.0,
        data_options={},
        takes_parallel=False,
    )
    serving = asyncio.create_task(door.serve())
    assert isinstance(await bus.ask(JoinRun(name="deaf", episodes_max=1), serving), RunJoined)
    await door.close()
    assert not lobby.is_empty
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() - {serving}] == [
        asyncio.current_task().get_name()  # type: ignore[union-attr]
    ]
    serving.cancel()
    await asyncio.wait({serving})
