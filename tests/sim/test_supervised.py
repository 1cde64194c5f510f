"""Supervised runs in the swarm: conversations are imported once, whatever dies."""

from __future__ import annotations

from random import Random

from sim.choosers import Seeded
from sim.faults import NO_FAULTS, Faults
from sim.topologies import supervised
from sim.world import World


def faults(random: Random) -> Faults:
    return Faults(
        delay=random.choice((0.0, 0.05)),
        block=random.choice((0.0, 0.005)),
        blocks=2,
        death=0.03,
        deaths=random.choice((0, 1, 3)),
        mortal=("session", "rollout"),
        resume=0.01,
        resumes=random.choice((0, 1, 2)),
        step_s=random.choice((0.05, 5.0)),
    )


def test_every_conversation_is_trained_once_for_each_pass_over_the_data() -> None:
    World(supervised(), Seeded(0), NO_FAULTS).run()


def test_deaths_and_resumes_neither_skip_nor_repeat_a_conversation() -> None:
    for seed in range(200):
        random = Random(seed)
        shape = supervised(
            steps=random.choice((1, 3, 5)),
            sessions=random.choice((1, 2)),
            checkpoint_every=random.choice((0, 1, 2)),
        )
        World(shape, Seeded(seed), faults(random), seed=seed).run()
