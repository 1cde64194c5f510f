"""Evaluators that are killed while they measure: every version ends with one score or one reason.

Only the evaluator dies here, often, and now and then the whole run, which goes on from its last
checkpoint. The swarm has such deaths, too, among everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pytest
from sim import naive_exams
from sim.choosers import Seeded
from sim.faults import Faults
from sim.topologies import topology
from sim.world import Variant, World

from milepost.actors.effects import Core
from milepost.actors.evaluator.records import Past
from milepost.actors.evaluator.schedule import INTERRUPTED
from milepost.actors.evaluator.settings import EvaluatorSettings
from milepost.messages.shared import Prompt

SEEDS = range(60)
MakeEvaluator: TypeAlias = Callable[[EvaluatorSettings, Sequence[Prompt], Past], Core]
WAYS: dict[str, dict[str, Any]] = {
    "the rollout's engines": {},
    "engines of its own": {"fleet": 1},
    "a class of the user's": {"external": "sim:Exam"},
}
NAIVE: dict[str, tuple[MakeEvaluator, str]] = {
    "knows nothing of what was begun": (
        partial(naive_exams.remembering, naive_exams.forgets_what_was_begun),
        "nobody knows of them",
    ),
    "knows nothing of what was told": (
        partial(naive_exams.remembering, naive_exams.forgets_what_was_told),
        "scored twice|and has a score|two reasons",
    ),
    "tells before it writes": (naive_exams.telling, "scored twice|and is skipped|and has a score"),
}


def run(seed: int, way: dict[str, Any], variant: Variant | None = None) -> World:
    random = Random(f"lives/{seed}")
    shape = topology(
        steps=random.choice((3, 4, 5)),
        prompts=1,
        evaluator=True,
        every_versions=random.choice((1, 1, 2)),
        publish_every=random.choice((1, 1, 2)),
        overflow=random.choice(("backpressure", "skip")),
        **way,
    )
    faults = Faults(
        death=0.03,
        deaths=random.choice((1, 3, 6)),
        mortal=(),
        restart_s=random.choice((0.0, 1.0, 5.0)),
        resume=0.004,
        resumes=random.choice((0, 0, 1, 2)),
        failures=random.choice((0.0, 0.2)),
        step_s=random.choice((0.05, 2.0)),
    )
    return World(shape, Seeded(seed), faults, variant or Variant(), seed=seed).run()


@pytest.mark.parametrize("way", WAYS)
def test_what_a_dead_evaluator_left_is_measured_by_the_next_or_named(way: str) -> None:
    """Never in silence, and what was told once is not told otherwise: see `Watch`."""
    worlds = [run(seed, WAYS[way]) for seed in SEEDS]
    left = sum(len(world.exams.left) for world in worlds)
    named = sum(
        reason == INTERRUPTED for world in worlds for reason in world.watch.skipped.values()
    )
    assert left > 10, "a fault that does not happen tests nothing"
    if way == "a class of the user's":
        assert not named, "files are kept: nothing has to be given up"
    else:
        assert named, "engines that serve a newer version cannot be asked for an older one"


@pytest.mark.parametrize("mistake", NAIVE)
def test_the_simulator_finds_an_evaluator_that(mistake: str) -> None:
    make, said = NAIVE[mistake]
    errors = (found(seed, Variant(evaluator=make)) for seed in SEEDS)
    first = next(filter(None, errors), None)
    assert first is not None, f"nobody noticed in {len(SEEDS)} seeds"
    assert re.search(said, first), first


def found(seed: int, variant: Variant) -> str:
    """What the checkers say of the variant; "" when they say nothing."""
    try:
        run(seed, WAYS["a class of the user's"], variant)
    except AssertionError as error:
        return str(error)
    return ""
