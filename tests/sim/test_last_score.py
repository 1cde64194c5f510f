"""The last version's score in whole runs: engines that come to themselves, and some that never do,
and an evaluator that dies for good.

All begin well: version 0 is measured before anything breaks.
"""

from __future__ import annotations

from typing import Any

import pytest
from sim.choosers import Seeded
from sim.engines import Engine
from sim.overseer import Supervisor
from sim.topologies import topology
from sim.world import World


def broken_after_its_first_score() -> tuple[World, Engine]:
    world = World(topology(steps=2, evaluator=True, fleet=1), Seeded(1), seed=1)
    while not world.watch.evaluations:
        assert world.advance()
    engine = world.network.actors["evaluation_engine-0"].core
    assert isinstance(engine, Engine)
    engine.is_broken = True
    return world, engine


def problem_of(world: World) -> str:
    supervisor = world.network.actors["supervisor"].core
    assert isinstance(supervisor, Supervisor)
    return supervisor.problems.get("evaluator", "")


def test_engines_that_never_take_the_last_version_make_the_run_name_the_missing_score() -> None:
    """It trains to its end and saves; only `done` is not the word for it."""
    world, _ = broken_after_its_first_score()
    world.run()
    assert "version 2, the last one, has no score: unhealthy" in problem_of(world)
    assert world.watch.events["evaluation_owed"] > 1
    assert world.disk.checkpoint is not None
    assert world.disk.checkpoint.version == 2


def test_engines_that_come_to_themselves_still_measure_the_last_version() -> None:
    """The first try for it has failed by then."""
    world, engine = broken_after_its_first_score()
    while not world.watch.events["evaluation_owed"]:
        assert world.advance()
    engine.is_broken = False
    world.run()
    assert problem_of(world) == ""
    assert [each["version"] for each in world.watch.evaluations] == [0, 2]


@pytest.mark.parametrize("way", [{}, {"fleet": 1}, {"external": "sim:Exam"}])
def test_a_run_whose_evaluator_died_for_good_gets_its_last_score_when_it_goes_on(
    way: dict[str, Any],
) -> None:
    """All steps are trained and saved by then: the resumed run has nothing else to do."""
    world = World(topology(steps=2, evaluator=True, **way), Seeded(1), seed=1)
    while world.disk.checkpoint is None or world.disk.checkpoint.version < 2:
        assert world.advance()
    world.network.kill("evaluator", keep_sent=world.chooser.pick)
    supervisor = world.network.actors["supervisor"].core
    assert isinstance(supervisor, Supervisor)
    while "trainer-0" not in supervisor.finished:
        assert world.advance()
    assert [each["version"] for each in world.watch.evaluations] == [0]
    trained = dict(world.watch.trained)
    world.resume()
    world.run()
    assert [each["version"] for each in world.watch.evaluations] == [0, 2]
    assert problem_of(world) == ""
    assert world.watch.trained == trained
