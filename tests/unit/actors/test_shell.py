"""The shell between a bus and a core: what a core is told, and in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from msgspec.structs import replace
from proc.bus.harness import until

from milepost.actors.context import ActorContext
from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Received,
    Reply,
    Tell,
    Unanswered,
    Wake,
    Woken,
    Work,
    WorkDone,
)
from milepost.actors.recorder.reading import read_recordings
from milepost.actors.recorder.recorder import Recorder
from milepost.configs.spec import ActorSpec
from milepost.configs.topology import Topology
from milepost.messages.bulk import Bulk
from milepost.messages.bus import Bus, BusLimits
from milepost.messages.bus.memory import MemoryNetwork
from milepost.messages.engine import EpochAnswer, Generate
from milepost.messages.shared import SamplingParams
from milepost.messages.supervisor import Begin, EventReported, PeerRestarted, Ready

NAMES = ("supervisor", "asker", "peer")
LIMITS = BusLimits(probe_s=60)


async def open_buses(network: MemoryNetwork) -> dict[str, Bus]:
    """The first life of everybody."""
    return {
        name: await Bus.over(
            network.transport(name), name=name, incarnation=0, run_id="run", limits=LIMITS
        )
        for name in NAMES
    }


class Asker:
    """Asks the peer once, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.is_done = asyncio.Event()

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return [Ask("peer", EpochAnswer(version=1, ok=True), "question", 60.0)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        self.told.append(event)
        if len(self.told) == 2:
            self.is_done.set()
        return []

    def validate(self) -> None:
        """Nothing to assert."""

    def statistics(self) -> dict[str, object]:
        return {}

    def working_on(self) -> str:
        return "asks"


class Listener(Asker):
    """Asks nobody, and is done after so many events."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        self.told.append(event)
        if len(self.told) == self._count:
            self.is_done.set()
        return []


async def test_questions_to_a_dead_peer_fail_before_the_news_of_its_restart() -> None:
    """A core that marks a silent peer as failed, and a restarted one as well, ends with the truth.

    The other way round, sessions would shun an engine that was started again for ever.
    """
    network = MemoryNetwork(NAMES)
    buses: dict[str, Bus] = {}
    for name in NAMES:
        transport = network.transport(name)
        buses[name] = await Bus.over(
            transport, name=name, incarnation=0, run_id="run", limits=LIMITS
        )
    context = ActorContext(_spec(), buses["asker"])
    core = Asker()
    serving = asyncio.create_task(context.serve(core))
    assert isinstance((await buses["supervisor"].receive()).message, Ready)
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    await buses["peer"].receive()
    links = buses["asker"].statistics
    taken = "the question to be taken"
    await until(
        lambda: all(link.unacked == 0 for link in links().links if link.peer == "peer"), taken
    )
    news = PeerRestarted(actor="peer", incarnation=1)
    await buses["supervisor"].tell("asker", news, deadline_s=5)
    await core.is_done.wait()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    first, second = core.told
    assert isinstance(first, Unanswered)
    assert "was taken by incarnation 0 of peer, which is gone" in first.reason
    assert second == Received("supervisor", news)


async def test_a_death_is_heard_of_before_the_first_word_of_the_next_life() -> None:
    """News of the supervisor's and words of a peer come over two links: a publisher that heard of a
    death second waited two minutes for an engine that had said that it is there."""
    network = MemoryNetwork(NAMES)
    buses = await open_buses(network)
    context = ActorContext(_spec(), buses["asker"])
    core = Listener(4)
    serving = asyncio.create_task(context.serve(core))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    words = [EpochAnswer(version=number, ok=True) for number in range(3)]
    await buses["peer"].tell("asker", words[0], deadline_s=5)
    await buses["peer"].close(deadline_s=0.05)
    buses["peer"] = await Bus.over(
        network.transport("peer"), name="peer", incarnation=1, run_id="run", limits=LIMITS
    )
    await buses["peer"].tell("asker", words[1], deadline_s=5)
    news = PeerRestarted(actor="peer", incarnation=1)
    await buses["supervisor"].tell("asker", news, deadline_s=5)
    await buses["peer"].tell("asker", words[2], deadline_s=5)
    async with asyncio.timeout(5):
        await core.is_done.wait()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    assert core.told == [
        Received("peer", words[0]),
        Received("supervisor", news),
        Received("peer", words[1]),
        Received("peer", words[2]),
    ]


async def test_deaths_before_anything_was_asked_are_not_told_after_the_answer() -> None:
    """The supervisor's news is of the life before the one that has answered, and took nothing."""
    network = MemoryNetwork(NAMES)
    buses = await open_buses(network)
    await buses["peer"].close(deadline_s=0.05)
    buses["peer"] = await Bus.over(
        network.transport("peer"), name="peer", incarnation=1, run_id="run", limits=LIMITS
    )
    context = ActorContext(_spec(), buses["asker"])
    core = Asker()
    serving = asyncio.create_task(context.serve(core))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    word = EpochAnswer(version=2, ok=True)
    buses["peer"].reply(await buses["peer"].receive(), word)
    await until(lambda: bool(core.told), "the answer to be told")
    news = PeerRestarted(actor="peer", incarnation=1)
    await buses["supervisor"].tell("asker", news, deadline_s=5)
    await buses["peer"].tell("asker", word, deadline_s=5)
    async with asyncio.timeout(5):
        await core.is_done.wait()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    assert core.told == [Answered("question", "peer", word), Received("peer", word)]


class Worker(Asker):
    """Orders one work and keeps how it ended."""

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return [Work("work")]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        self.told.append(event)
        self.is_done.set()
        return []


class Sleeper(Asker):
    """Wishes to be woken at times a fraction of a millisecond apart; keeps how early it was."""

    def __init__(self) -> None:
        super().__init__()
        self.early_s: list[float] = []
        self.due_s: dict[str, float] = {}

    def start(self, now_s: float) -> list[Effect]:
        self.due_s = {str(number): now_s + 0.01 + number * 0.00013 for number in range(100)}
        return [Wake(key, at_s) for key, at_s in self.due_s.items()]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        assert isinstance(event, Woken)
        self.early_s.append(self.due_s.pop(event.key) - now_s)
        if not self.due_s:
            self.is_done.set()
        return []


def test_nobody_is_woken_before_the_time() -> None:
    """uvloop counts whole milliseconds. A core that is woken a little early finds its wait not over
    and is never woken again: a trainer then hung in half of all early ends until a deadline.
    """

    async def live() -> list[float]:
        network = MemoryNetwork(NAMES)
        buses = [
            await Bus.over(
                network.transport(name), name=name, incarnation=0, run_id="run", limits=LIMITS
            )
            for name in NAMES
        ]
        supervisor, asker, _ = buses
        context, core = ActorContext(_spec(), asker), Sleeper()
        serving = asyncio.create_task(context.serve(core))
        await supervisor.receive()
        await supervisor.tell("asker", Begin(), deadline_s=5)
        await core.is_done.wait()
        context.stopping.set()
        await serving
        for bus in buses:
            await bus.close(deadline_s=0.05)
        return core.early_s

    early_s = uvloop.run(live())
    assert len(early_s) == 100
    assert max(early_s) <= 0


class NoException(BaseException):
    """As torch raises for a checkpoint that cannot be written."""


@pytest.mark.parametrize("error", [NoException("no room"), asyncio.CancelledError("of a friend")])
async def test_a_work_that_fails_in_whatever_way_comes_back_to_the_core(
    error: BaseException,
) -> None:
    """Else the core waits for it for ever, and nobody ever says why.

    User code that waits for a task which somebody cancelled raises as if it were cancelled itself.
    """

    async def perform(_: Work) -> object:
        raise error

    network = MemoryNetwork(NAMES)
    buses = await open_buses(network)
    context = ActorContext(_spec(), buses["asker"])
    core = Worker()
    serving = asyncio.create_task(context.serve(core, perform=perform))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    async with asyncio.timeout(5):
        await core.is_done.wait()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    assert core.told == [WorkDone("work", None, f"{type(error).__name__}: {error}")]


class Answerer(Asker):
    """Answers every question and tells the supervisor of it."""

    def start(self, now_s: float) -> list[Effect]:
        del now_s
        return []

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        del now_s
        self.told.append(event)
        if not isinstance(event, Received) or event.request is None:
            return []
        heard = EventReported(source="asker", kind="heard", text="a question")
        return [Tell("supervisor", heard), Reply(event.request, EpochAnswer(version=2, ok=True))]


async def test_a_message_has_one_id_and_one_digest_in_the_recorders_of_both_ends(
    tmp_path: Path,
) -> None:
    """That is what joins the recordings of two actors into one story."""
    network = MemoryNetwork(NAMES)
    buses = await open_buses(network)
    spec = replace(_spec(), run_folder=str(tmp_path))
    recorder = Recorder.open(spec)
    assert recorder is not None
    context = ActorContext(spec, buses["asker"], recorder)
    serving = asyncio.create_task(context.serve(Answerer()))
    await buses["supervisor"].receive()
    await buses["supervisor"].tell("asker", Begin(), deadline_s=5)
    question = buses["peer"].ask("asker", EpochAnswer(version=1, ok=True), deadline_s=5, cause=77)
    asked = buses["peer"].last_sent
    answer = await question
    news = await buses["supervisor"].receive()
    while not isinstance(news.message, EventReported):
        news = await buses["supervisor"].receive()
    context.stopping.set()
    await serving
    for bus in buses.values():
        await bus.close(deadline_s=0.05)
    recorder.close()
    (found,) = read_recordings(tmp_path / "recorder")
    start, line = found.lines
    assert (start.kind, start.number) == ("start", 0)
    assert (line.message_id, line.digest, line.cause) == (*asked, 77)
    told, replied = line.decisions
    assert (told.message_id, told.digest) == (news.message_id, news.digest)
    assert (replied.message_id, replied.digest) == (answer.message_id, answer.digest)
    assert news.cause == answer.cause == asked[0]


def _spec() -> ActorSpec:
    topology: Any = {"run": {"name": "test", "steps": 1}}
    return ActorSpec(
        actor="asker",
        kind="asker",
        index=0,
        incarnation=0,
        run_id="run",
        run_folder="",
        topology=msgspec.convert(topology, Topology),
        addresses={},
        topology_hash="",
    )


@pytest.mark.parametrize("is_shared", [False, True])
async def test_only_what_travels_whole_and_at_once_has_a_digest(*, is_shared: bool) -> None:
    """Both ends must say the same of it; and the recorder lets nothing wait that has none, since
    somebody may wait for its memory."""
    network = MemoryNetwork(NAMES, local=True)
    above_bytes = 1 << 17 if is_shared else 1 << 20
    limits = BusLimits(probe_s=60, shared_memory_above_bytes=above_bytes)
    asker, peer = [
        await Bus.over(
            network.transport(name), name=name, incarnation=0, run_id="digests", limits=limits
        )
        for name in ("asker", "peer")
    ]
    row = Bulk("uint8", (1 << 18,), bytes(1 << 18))
    told = Generate(request_id="r", session_id="s", token_ids=row, sampling=SamplingParams())
    asking = asker.ask("peer", told, deadline_s=60)
    digests = [asker.last_sent[1]]
    heard = await peer.receive()
    peer.reply(heard, told)
    digests += [heard.digest, peer.last_sent[1], (await asking).digest]
    del heard, asking
    for bus in (asker, peer):
        await bus.close(deadline_s=0.05)
    assert len(set(digests)) == 1, digests
    assert bool(digests[0]) != is_shared
