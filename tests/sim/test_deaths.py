"""kill -9 at every step of a run: of each actor that may start again, and of everything at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from sim.choosers import Seeded
from sim.overseer import Supervisor
from sim.topologies import topology
from sim.world import World

SHAPE = topology(steps=2, prompts=2, samples=2, evaluator=True, engines=2)
SEED = 4
STRIDE = 1 if os.environ.get("CI") else 5
"""Every step where time is the machine's, every fifth where it is a person's."""


def steps_of_a_quiet_run() -> int:
    return World(SHAPE, Seeded(SEED), seed=SEED).run().network.num_delivered


def killing(name: str) -> Callable[[World], None]:
    def kill(world: World) -> None:
        if world.network.actors[name].core is not None:
            world.kill(name)

    return kill


@pytest.mark.parametrize(
    "name", ["agent-0", "session-0", "engine-0", "rollout", "buffer", "evaluator", "publisher"]
)
def test_an_actor_may_die_at_any_step(name: str) -> None:
    """The run ends, every batch is full, nothing is trained twice and no prompt is skipped."""
    offset = len(name) % STRIDE
    for number in range(offset, steps_of_a_quiet_run(), STRIDE):
        World(SHAPE, Seeded(SEED), seed=SEED, script={number: killing(name)}).run()


def test_the_whole_run_may_die_at_any_step() -> None:
    """What the disk holds is enough to go on: no group lost, none trained twice."""
    for number in range(0, steps_of_a_quiet_run(), STRIDE):
        World(SHAPE, Seeded(SEED), seed=SEED, script={number: World.resume}).run()


def test_a_run_may_die_again_while_it_resumes() -> None:
    """Recovery itself is the least tested moment of most systems."""
    first = steps_of_a_quiet_run() // 2
    for number in range(first + 1, first + 80, STRIDE):
        script: dict[int, Callable[[World], None]]
        script = {first: World.resume, number: World.resume}
        World(SHAPE, Seeded(SEED), seed=SEED, script=script).run()


def test_a_run_may_be_drained_at_any_step_and_goes_on_from_there() -> None:
    """Nobody waits for anybody who drains, and what was in flight is still in the books."""
    for number in range(1, steps_of_a_quiet_run(), STRIDE):
        world = World(SHAPE, Seeded(SEED), seed=SEED, script={number: World.drain})
        supervisor = world.network.actors["supervisor"].core
        assert isinstance(supervisor, Supervisor)
        everybody = world.network.actors.keys() - {"supervisor"}
        steps = iter(range(5_000))
        while supervisor.drained != everybody:
            assert next(steps, None) is not None, everybody - supervisor.drained
            world.advance()
        world.resume()
        world.script.clear()
        world.run()
