"""Streamed replies: the parts of a reply are the reply, and nobody waits for who is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from unit.engine.kit import order, publish, random_row, random_weights, serving, step, tiny_shape

from milepost.actors.arrays import from_bulk
from milepost.actors.effects import Effect, Tell
from milepost.actors.engine.interface import Finished, Progress
from milepost.actors.engine.parts import TOKENS_MAX, Parts
from milepost.messages.engine import PauseMode
from milepost.messages.session import GeneratedPart


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def part(effects: list[Effect]) -> tuple[int, list[int]]:
    (tell,) = effects
    assert isinstance(tell, Tell)
    assert tell.confirm
    assert isinstance(tell.message, GeneratedPart)
    return tell.message.start, from_bulk(tell.message.token_ids).tolist()


def test_a_slow_asker_gets_fewer_larger_parts() -> None:
    """One part is on its way at a time, so a stuck session holds one message, not thousands."""
    parts = Parts()
    parts.open("r", "session-0")
    assert part(parts.sampled("r", tokens(1))) == (0, [1])
    assert parts.sampled("r", tokens(2)) == []
    assert parts.sampled("r", tokens(3, 4)) == []
    assert part(parts.taken("part/r")) == (1, [2, 3, 4])
    assert parts.taken("part/r") == []
    assert part(parts.sampled("r", tokens(5))) == (4, [5])


def test_one_part_has_a_bound() -> None:
    """Reading a part must not hold up the event loop of the session."""
    parts = Parts()
    parts.open("r", "session-0")
    start, first = part(parts.sampled("r", np.arange(TOKENS_MAX + 3, dtype=np.int32)))
    assert (start, len(first)) == (0, TOKENS_MAX)
    assert part(parts.taken("part/r")) == (TOKENS_MAX, [TOKENS_MAX + i for i in range(3)])


def test_nothing_is_told_of_a_reply_that_was_answered_or_is_not_streamed() -> None:
    """The answer has everything; a part after it would be of no request."""
    parts = Parts()
    assert parts.sampled("other", tokens(1)) == []
    parts.open("r", "session-0")
    parts.sampled("r", tokens(1))
    parts.sampled("r", tokens(2))
    parts.close("r")
    assert parts.taken("part/r") == []
    parts.open("gone", "session-0")
    parts.sampled("gone", tokens(1))
    parts.drop("part/gone")
    assert parts.sampled("gone", tokens(2)) == []
    assert len(parts) == 0


@pytest.mark.parametrize("mode", list(PauseMode))
def test_progress_and_reply_have_the_same_tokens_also_across_a_switch(mode: PauseMode) -> None:
    """A client that streams must see what is trained, whatever the weights do meanwhile."""
    engine = serving(seed=0)
    streamed = replace(order("a", random_row(0, 7), tokens_max=15, seed=3), stream=True)
    engine.generate(streamed)
    engine.generate(order("b", random_row(1, 5), tokens_max=15, seed=4))
    told: list[int] = []
    finished: dict[str, Finished] = {}
    for number in range(60):
        if number == 5:
            publish(engine, random_weights(tiny_shape(), 1), 1, mode)
        for outcome in step(engine) if engine.has_work() else []:
            if isinstance(outcome, Progress):
                assert outcome.key == "a"
                told += outcome.token_ids.tolist()
            else:
                assert isinstance(outcome, Finished)
                finished[outcome.key] = outcome
    whole = finished["a"].token_ids.tolist()
    assert len(whole) - 1 == len(told), "the last token comes with the answer"
    assert whole[: len(told)] == told
