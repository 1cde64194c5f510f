"""One process that scores, as its pool sees it: a pipe that answers, and ends when it likes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from milepost.actors.agent.reward import RewardResult
from milepost.actors.agent.reward_pool import _Worker
from milepost.actors.agent.reward_worker import LENGTH_BYTES, Scored

SCORED = Scored(result=RewardResult(reward=1.0), seconds=0.01)


class FakeProcess:
    """Answers as the test has it; what it is told is kept."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader()
        self.told = bytearray()
        self.stdin = self

    def write(self, data: bytes) -> None:
        self.told += data

    def answers(self) -> None:
        frame = msgspec.msgpack.encode(SCORED)
        self.stdout.feed_data(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)


async def test_a_worker_that_ends_in_the_same_breath_as_it_answers_scores_nobody_else() -> None:
    """The next call would wait for its whole deadline, and blame the reward function."""
    process: Any = FakeProcess()
    worker = _Worker(process)
    calling = asyncio.create_task(worker.call(b"given", 60.0))
    await asyncio.sleep(0)
    process.answers()
    process.stdout.feed_eof()
    assert (await calling) == SCORED
    assert not worker.is_free
    await worker._reading


async def test_a_worker_that_answers_is_free() -> None:
    process: Any = FakeProcess()
    worker = _Worker(process)
    calling = asyncio.create_task(worker.call(b"given", 60.0))
    await asyncio.sleep(0)
    process.answers()
    assert (await calling) == SCORED
    assert worker.is_free
    assert worker.is_alive
    process.stdout.feed_eof()
    await worker._reading
    assert not worker.is_alive
