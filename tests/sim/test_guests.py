"""Whole runs whose episodes are played by strangers: the invariants hold, and nothing is lost."""

from __future__ import annotations

import dataclasses
import os
from random import Random

import pytest
from msgspec.structs import replace
from sim.choosers import Seeded
from sim.faults import swarm
from sim.guests import GuestsDoor
from sim.topologies import swarm_topology
from sim.world import World

from milepost.configs.actors import GuestsConfig
from milepost.configs.topology import Topology

CHUNK = 50
CHUNKS = 20 if os.environ.get("CI") else 4


def guests_topology(random: Random) -> Topology:
    """A shape of the swarm's, with guests beside its agents or alone."""
    topology = swarm_topology(random)
    agent = topology.actors.agent if random.random() < 0.4 else None
    return replace(topology, actors=replace(topology.actors, agent=agent, guests=GuestsConfig()))


def run(seed: int) -> World:
    random = Random(seed)
    topology, faults = guests_topology(random), swarm(random)
    # The door itself dies, too.
    faults = dataclasses.replace(faults, mortal=(*faults.mortal, "guests"))
    try:
        return World(topology, Seeded(seed), faults, seed=seed).run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_guests_do_no_invariant_breaks_and_every_run_ends(chunk: int) -> None:
    """They die, leave, fall silent, answer late; the door itself dies; all else goes wrong, too."""
    num_lost = num_void = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        door = run(seed).network.actors["guests"].core
        if isinstance(door, GuestsDoor):
            num_lost += door.lobby.num_gone_back
            num_void += door.num_void
    assert num_lost > 10, "guests that lose nothing test nothing"
    assert num_void > 0, "results that come too late are the point"
