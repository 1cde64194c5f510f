"""An actor that fails ends by that failure, whatever its recorder makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from unit.actors.test_shell import NAMES, Asker, _spec, open_buses

from milepost.actors.context import ActorContext
from milepost.actors.effects import Effect, Event, Wake
from milepost.actors.recorder.recorder import Recorder
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.supervisor import Begin


class MuteError(Exception):
    """Cannot be told in words, as those of other people's libraries now and then."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Failing(Asker):
    """Fails at a timer, behind which nobody waits for a result."""

    def start(self, now_s: float) -> list[Effect]:
        return [Wake("soon", now_s)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del event, now_s
        raise MuteError


async def test_a_failure_that_cannot_be_recorded_ends_the_actor_all_the_same(
    tmp_path: Path,
) -> None:
    """Else it would live on, silent and harmless to look at, and decide nothing any more."""
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: heard.append(context["exception"])
    )
    buses = await open_buses(MemoryNetwork(NAMES))
    spec = replace(_spec(), run_folder=str(tmp_path))
    recorder = Recorder.open(spec)
    assert recorder is not None
    serving = asyncio.create_task(ActorContext(spec, buses["asker"], recorder).serve(Failing()))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    done, _ = await asyncio.wait({serving}, timeout=30)
    assert done, "the actor goes on after its core has failed"
    with pytest.raises(MuteError):
        serving.result()
    assert [type(each) for each in heard] == [ValueError], "what the recorder failed at is heard"
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    recorder.close()
