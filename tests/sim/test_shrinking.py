"""Hypothesis draws the choices: a failure shrinks to the shortest and plainest story."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from sim import naive
from sim.choosers import Drawn
from sim.faults import Faults
from sim.topologies import topology
from sim.world import Variant, World

SHAPE = topology(steps=1, prompts=1, samples=2, agents=2)
FAULTS = Faults(death=0.5, deaths=1, mortal=("agent",))
CHOICES = st.dictionaries(st.integers(0, 200), st.integers(1, 11), max_size=8)
"""Number of a choice -> which option; everywhere else the first."""


def play(choices: dict[int, int], variant: Variant) -> World:
    numbers = count()
    chooser = Drawn(lambda options: choices.get(next(numbers), 0) % options, length=1_000)
    return World(SHAPE, chooser, FAULTS, variant, seed=1).run(steps_max=500)


@given(CHOICES)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_drawn_choices_break_nothing(choices: dict[int, int]) -> None:
    play(choices, Variant())


def test_a_planted_mistake_shrinks_to_one_death() -> None:
    """What is left of the story is the one thing that matters: the agent dies, nobody minds."""

    def fails(choices: dict[int, int]) -> bool:
        try:
            play(choices, Variant(rollout=naive.WaitsForTheDead.of))
        except AssertionError as error:
            return "does not end" in str(error)
        return False

    shortest = find(CHOICES, fails, settings=settings(max_examples=400, derandomize=True))
    assert len(shortest) <= 2, shortest
    with pytest.raises(AssertionError, match="oldest g0000000"):
        play(shortest, Variant(rollout=naive.WaitsForTheDead.of))
    play(shortest, Variant())
