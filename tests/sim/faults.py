"""What may go wrong in a simulated run, as one frozen object; and swarms of them.

The simulated network keeps what the bus promises: in order, once, or the sender is told. What lies
below that promise (lost, repeated and torn frames) is in tests/proc/bus/test_faults.py, where one
suite runs over memory and over ZeroMQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from milepost.configs.topology import Topology
from milepost.messages.bus.outbound import REFUSED_S

MORTAL = ("agent", "session", "engine", "rollout", "buffer")
"""Kinds of actors that may be started again within a run; any other's death means a resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances are for each delivery."""

    failures: float = 0.0
    """Share of episodes that fail."""
    impatience: float = 0.0
    """Share of later turns that the agent waits for only so long, and then ends well without."""
    delay: float = 0.0
    """Chance that the clock goes on by `delay_s` before the next delivery."""
    delay_s: float = 2.0
    delays: int = 1_000_000
    """Most of them: what is longer than every deadline can only happen so often."""
    block: float = 0.0
    """Chance that one link carries nothing for `block_s`; deadlines of what is on it pass."""
    block_s: float = 70.0
    blocks: int = 1_000_000
    """Most of them, as for delays."""
    slow: float = 0.0
    """Chance that one actor takes nothing for `slow_s`; whoever writes to it fills its links."""
    slow_s: float = 5.0
    slows: int = 1_000_000
    full_max: int = 0
    """Messages of one link that nobody took; a further one is refused. 0: no limit."""
    refused_s: float = REFUSED_S
    """How long after that its sender hears of it."""
    death: float = 0.0
    deaths: int = 0
    """Most deaths of single actors."""
    mortal: tuple[str, ...] = MORTAL
    restart_s: float = 1.0
    resume: float = 0.0
    resumes: int = 0
    """Most times that the whole run is killed and goes on from its last checkpoint."""
    step_s: float = 0.5
    """How long a training step takes: small starves the trainer, large fills the queue."""


NO_FAULTS = Faults()


def mortal_kinds(faults: Faults, topology: Topology) -> tuple[str, ...]:
    """Kinds of actors that may die in this run; the evaluator may always.

    A buffer without a journal is never started again within a run: its settings refuse.
    """
    buffer = topology.actors.buffer
    assert buffer is not None
    kinds = faults.mortal + ("evaluator",) * (topology.actors.evaluator is not None)
    return kinds if buffer.journal else tuple(kind for kind in kinds if kind != "buffer")


def swarm(random: Random) -> Faults:
    """Some kinds of fault switched off altogether, the others weighted wildly."""

    def sometimes(value: float) -> float:
        return value * 10 ** -random.uniform(0, 1) if random.random() < 0.5 else 0.0

    deaths = random.choice((0, 0, 1, 2, 4))
    resumes = random.choice((0, 0, 1, 2))
    kinds = tuple(kind for kind in MORTAL if random.random() < 0.6) or MORTAL
    delay_s = random.choice((0.3, 2.0, 20.0, 700.0))
    block_s = random.choice((5.0, 70.0))
    step_s = random.choice((0.05, 0.5, 5.0))
    restart_s = random.choice((0.0, 1.0, 5.0))
    slow_s = random.choice((1.0, 5.0, 70.0))
    return Faults(
        failures=sometimes(0.25),
        delay=sometimes(0.2),
        delay_s=delay_s,
        delays=2 if delay_s > 10.0 else 1_000_000,
        block=sometimes(0.01),
        block_s=block_s,
        blocks=2 if block_s > 60.0 else 1_000_000,
        death=0.01 if deaths else 0.0,
        deaths=deaths,
        mortal=kinds,
        restart_s=restart_s,
        resume=0.003 if resumes else 0.0,
        resumes=resumes,
        step_s=step_s,
        impatience=sometimes(0.5),
        slow=sometimes(0.01),
        slow_s=slow_s,
        slows=2 if slow_s > 60.0 else 1_000_000,
        full_max=random.choice((0, 0, 4, 8, 16)),
    )
