"""Which children a topology asks for, as data: order, significance, restart policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from milepost.configs.actors import EngineConfig, RestartConfig, TrainerConfig
from milepost.configs.topology import ActorsConfig, Topology

ORDERS: Final[dict[str, int]] = {
    "trainer": 0,
    "engine": 0,
    "evaluation_engine": 0,
    "publisher": 0,
    "buffer": 1,
    "session": 1,
    "agent": 2,
    "guests": 2,
    "rollout": 3,
    "evaluator": 3,
}
"""Kind -> stage. Children are stopped stage by stage from the highest down, so that whoever
makes work goes before whoever does it. All are started at once, the lowest stage (the slowest to
import) first."""
CUSTOM_ORDER: Final = 3


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child process of a run.

    Attributes:
        name: process name, e.g. `engine-0`.
        kind: a built-in kind, or the name of a `[custom.NAME]` table.
        index: number among the replicas of its kind.
        order: stage of starting and stopping, see `ORDERS`.
        significant: the run is done when every significant child has finished its work.
        saves: worth draining even when another actor has failed, since it saves a checkpoint.
        restart: what happens when it dies.
        threads: threads each numerical library of it may use.
    """

    name: str
    kind: str
    index: int
    order: int
    significant: bool
    saves: bool
    restart: RestartConfig
    threads: int = 1


def children_of(topology: Topology) -> tuple[ChildPlan, ...]:
    """Every child of the run, in the order of their start."""
    plans = [
        ChildPlan(
            name=name,
            kind=kind,
            index=index,
            order=ORDERS[kind],
            significant=name in {"trainer-0", "evaluator"},
            saves=kind == "trainer",
            restart=restart,
            threads=threads,
        )
        for kind, (restart, threads) in _tables(topology.actors).items()
        for index, name in enumerate(topology.names(kind))
    ]
    plans += [
        ChildPlan(
            name=name,
            kind=kind,
            index=index,
            order=CUSTOM_ORDER,
            significant=custom.significant,
            saves=custom.significant,
            restart=custom.restart,
        )
        for kind, custom in topology.custom.items()
        for index, name in enumerate(topology.names(kind))
    ]
    return tuple(sorted(plans, key=lambda plan: plan.order))


def _tables(actors: ActorsConfig) -> dict[str, tuple[RestartConfig, int]]:
    """Kind -> restart policy and threads, of every actor that the topology has."""
    tables = {
        "trainer": actors.trainer,
        "engine": actors.engine,
        "evaluation_engine": actors.evaluation_engine,
        "publisher": actors.publisher,
        "buffer": actors.buffer,
        "session": actors.session,
        "agent": actors.agent,
        "guests": actors.guests,
        "rollout": actors.rollout,
        "evaluator": actors.evaluator,
    }
    assert tables.keys() == ORDERS.keys(), "a kind of actor without a place in the order"
    return {
        kind: (
            table.restart,
            table.threads if isinstance(table, EngineConfig | TrainerConfig) else 1,
        )
        for kind, table in tables.items()
        if table is not None
    }
