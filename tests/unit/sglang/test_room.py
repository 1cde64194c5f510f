"""A cache whose memory comes and goes, between requests that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from unit.sglang.fake_server import FakeServer

from milepost.actors.engine.sglang.client import Client
from milepost.actors.engine.sglang.room import Room

RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"


@dataclass
class Scene:
    server: FakeServer
    room: Room
    failures: list[str] = field(default_factory=list)

    def doors(self) -> list[str]:
        return [door for door in self.server.asked if door in {RELEASE, RESUME}]

    async def idle(self) -> None:
        """Wait until what was begun when the last one left is over."""
        assert self.room._idle is not None
        await self.room._idle


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    server = FakeServer("0.5.21")
    await server.start()
    client = Client(server.url)
    failures: list[str] = []
    room = Room(client, failures.append, releases=True, deadline_s=5.0, idle_s=0.0)
    yield Scene(server, room, failures)
    room.close()
    await client.close()
    await server.stop()


async def test_memory_goes_when_the_last_one_left_and_is_back_for_the_next(scene: Scene) -> None:
    await scene.room.enter()
    await scene.room.enter()
    scene.room.leave()
    assert scene.doors() == []
    scene.room.leave()
    await scene.idle()
    assert scene.doors() == [RELEASE]
    assert scene.server.asked[0] == "/flush_cache", "a busy server dies of a release"
    await asyncio.gather(scene.room.enter(), scene.room.enter())
    assert scene.doors() == [RELEASE, RESUME]
    assert scene.room.num_releases == 1


async def test_who_comes_in_time_keeps_it(scene: Scene) -> None:
    """The turns of a conversation follow one another: each would otherwise lose its prefix."""
    await scene.room.enter()
    scene.room.leave()
    await scene.room.enter()
    await scene.idle()
    assert scene.doors() == []


async def test_who_comes_in_the_middle_waits_for_it_to_come_back(scene: Scene) -> None:
    await scene.room.enter()
    scene.room.leave()
    await asyncio.sleep(0)
    entering = asyncio.create_task(scene.room.enter())
    await asyncio.gather(scene.idle(), entering)
    doors = scene.doors()
    assert doors in ([], [RELEASE, RESUME])
    assert scene.room.num_inside == 1


async def test_a_server_that_keeps_its_memory_is_told(scene: Scene) -> None:
    scene.server.broken.add(RELEASE)
    await scene.room.enter()
    scene.room.leave()
    await scene.idle()
    assert "did not give its memory back" in scene.failures[0]


async def test_without_the_setting_nothing_is_asked() -> None:
    server = FakeServer("0.5.21")
    client = Client("http://127.0.0.1:9")
    room = Room(client, pytest.fail, releases=False, deadline_s=5.0)
    await room.enter()
    room.leave()
    await client.close()
    assert server.asked == []
    assert room.num_inside == 0
