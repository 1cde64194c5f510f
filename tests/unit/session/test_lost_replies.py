"""Replies that come into no row: they were sampled, so the waste statement has their tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.session.kit import QUESTION, STOP, Play, play, renderer

from milepost.actors.arrays import to_bulk
from milepost.actors.effects import WorkDone
from milepost.actors.session import work
from milepost.messages.shared import EpisodeLimits, SamplingParams

TEXT = "word " * 120


def reading(monkeypatch: pytest.MonkeyPatch) -> tuple[Play, dict[str, int]]:
    """A thread reads a reply; and the one account that its tokens belong to when it is lost."""
    monkeypatch.setattr(work, "INLINE_TOKENS_MAX", 0)
    game = play()
    limits = EpisodeLimits(reply_tokens_max=2000, tokens_max=4000)
    game.open(sampling=SamplingParams(tokens_max=2000, seed=1), limits=limits)
    game.chat([QUESTION])
    sampled = game.sample(TEXT).token_ids.shape[0]
    assert game.works
    assert not game.desk.counters.accounts
    return game, {"stopped": sampled}


def test_a_turn_stopped_while_its_reply_is_read_is_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a newer request, or by a verdict; what the thread read counts for nothing, and once."""
    game, waste = reading(monkeypatch)
    game.chat([QUESTION])
    game.work()
    assert game.desk.counters.accounts == waste
    game, waste = reading(monkeypatch)
    game.finish()
    assert game.desk.counters.accounts == waste
    game.work()
    assert game.desk.counters.accounts == waste


def test_a_reply_that_cannot_be_read_is_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    game, waste = reading(monkeypatch)
    (key,) = game.works
    game.handle(WorkDone(key, None, "no room"))
    assert game.desk.counters.accounts == waste


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"weights": ()}, 4),
        ({"spans": ()}, 4),
        ({"token_ids": to_bulk(np.zeros((2, 2), dtype=np.int32))}, 2),
        ({"token_ids": to_bulk(np.array(7, dtype=np.int32))}, 0),
    ],
)
def test_a_broken_answer_is_waste(fields: dict[str, Any], count: int) -> None:
    """Its engine sampled for nothing, and whoever reads the statement must see how much."""
    assert len(renderer().tokenizer.encode(f"a b{STOP}")) == 4
    game = play()
    game.open()
    game.chat([QUESTION])
    game.sample("a b", **fields)
    assert game.desk.counters.refused == {"engine": 1}
    assert game.desk.counters.accounts == ({"stopped": count} if count else {})
