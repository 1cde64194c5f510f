"""One seed, one whole run: shape, faults and every choice follow from the number."""

from __future__ import annotations

import gc
from random import Random

from sim.choosers import Seeded
from sim.faults import NO_FAULTS, Faults, swarm
from sim.topologies import swarm_topology
from sim.world import Variant, World


def run_seed(
    seed: int,
    *,
    faults: bool | Faults = True,
    variant: Variant | None = None,
    trace: list[str] | None = None,
) -> World:
    """Run to the end.

    Raises:
        AssertionError: an invariant is broken; with the seed and how to see its story.
    """
    random = Random(seed)
    topology, drawn = swarm_topology(random), swarm(random)
    chosen = faults if isinstance(faults, Faults) else (drawn if faults else NO_FAULTS)
    gc.disable()  # a run makes much and drops little before its end
    try:
        world = World(topology, Seeded(seed), chosen, variant or Variant(), seed=seed, trace=trace)
        return world.run()
    except AssertionError as error:
        story = f"seed {seed}: {error}\n    see it happen: make sim SEED={seed}"
        raise AssertionError(story) from error
    finally:
        gc.enable()


def tell_story(seed: int) -> tuple[list[str], str]:
    """Every delivery of a seed, a line each, and how it ended.

    A line is the simulated time, who got it, from whom (`?` a question, `:` a statement), and what
    with its names and numbers.
    """
    trace: list[str] = []
    random = Random(seed)
    trace.append(f"shape: {_brief(repr(swarm_topology(random)))}")
    trace.append(f"faults: {swarm(random)}")
    try:
        world = run_seed(seed, trace=trace)
    except AssertionError as error:
        return trace, str(error)
    return trace, f"seed {seed}: {world.network.num_delivered} deliveries, all invariants held"


def _brief(text: str) -> str:
    start = text.index("algorithm=")
    return text[: text.index("model=")] + text[start : text.index(", sampling=")]
