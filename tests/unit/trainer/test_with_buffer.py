"""The trainer's core and door with the real buffer: what the one refuses, the other replaces."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from unit.buffer.test_refusals import Play as BufferPlay
from unit.trainer.kit import group
from unit.trainer.play import Play, play

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.actors.effects import Answered, Ask, Received, Tell, WorkDone
from milepost.actors.trainer.door import check_batch
from milepost.actors.trainer.rows import read_batch
from milepost.actors.trainer.works import CheckBatch, TrainBatch
from milepost.configs.run import AlgorithmConfig
from milepost.messages.buffer import BatchRequested, GroupOpened, GroupsRefused, TrajectoryFinished
from milepost.messages.trajectory import Trajectory


def store(buffer: BufferPlay, name: str, members: list[Trajectory]) -> None:
    buffer.receive(GroupOpened(group_id=name, prompt_id="p", size=len(members)))
    for each in members:
        # The buffer writes down the group's rewards and size when it is complete.
        bare = msgspec.structs.replace(each, group_rewards=(), group_size=1)
        buffer.receive(TrajectoryFinished(trajectory=bare))


def bring(trainer: Play, buffer: BufferPlay) -> None:
    """The question goes to the buffer, its answer through the real door."""
    asked = trainer.take(Ask)
    assert isinstance(asked.message, BatchRequested)
    answer = buffer.replies[buffer.ask(asked.message.step)]
    trainer.feed(Answered(asked.key, "buffer", answer))
    work = trainer.take(CheckBatch)
    trainer.feed(WorkDone(work.key, check_batch(work.batch, work.rules)))


def test_a_group_refused_at_the_door_is_replaced_and_the_step_is_trained() -> None:
    """Normalisers, rewards and sizes come from the buffer, and must fit the new batch."""
    buffer, trainer = BufferPlay(), play()
    bad = group("g1", (0.0, 1.0))
    logprobs = from_bulk(bad[1].logprobs).copy()
    logprobs[np.flatnonzero(logprobs)[0]] = math.nan
    bad[1] = msgspec.structs.replace(bad[1], logprobs=to_bulk(logprobs))
    for name, members in (("g0", group("g0", (1.0, 0.0))), ("g1", bad)):
        store(buffer, name, members)
    store(buffer, "g2", group("g2", (0.5, 0.0)))
    bring(trainer, buffer)
    told = [each for each in trainer.waiting if isinstance(each, Tell)]
    (refused,) = [each.message for each in told if isinstance(each.message, GroupsRefused)]
    assert refused.group_ids == ("g1",)
    assert refused.reasons[0].startswith("C3 same log-probs: log-prob nan")
    buffer.feed(buffer.buffer.handle(Received("trainer-0", refused), 0.0))
    trainer.taken()
    bring(trainer, buffer)
    batch = trainer.take(TrainBatch).batch
    assert batch.group_ids == ("g0", "g2")
    for minibatch in read_batch(batch, AlgorithmConfig()):
        assert minibatch.loss_tokens == sum(len(row.loss_positions) for row in minibatch.rows)
        assert minibatch.trajectories == len(minibatch.rows) == 2
        assert sum(row.advantage for row in minibatch.rows) == 0.0
