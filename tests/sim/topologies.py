"""Topologies small enough that thousands of their runs fit in a minute."""

from __future__ import annotations

from copy import copy
from random import Random
from typing import Any, Literal

from milepost.configs.actors import (
    AgentConfig,
    BufferConfig,
    EngineConfig,
    EvaluationEngineConfig,
    EvaluatorConfig,
    PublisherConfig,
    RolloutConfig,
    SessionConfig,
    TrainerConfig,
)
from milepost.configs.run import AlgorithmConfig, DataConfig, Mode, RunConfig
from milepost.configs.topology import ActorsConfig, Topology


def topology(
    *,
    steps: int = 3,
    prompts: int = 2,
    samples: int = 2,
    sync: bool = False,
    agents: int = 1,
    sessions: int = 1,
    engines: int = 1,
    ranks: int = 1,
    publisher: bool = True,
    evaluator: bool = False,
    every_versions: int = 0,
    fleet: int = 0,
    overflow: Literal["backpressure", "skip"] = "backpressure",
    external: str = "",
    checkpoint_every: int = 1,
    publish_every: int = 1,
    minibatches: int = 1,
    turn_every: int = 0,
    rollout: dict[str, Any] | None = None,
    buffer: dict[str, Any] | None = None,
) -> Topology:
    """Like a recipe, with everything that matters to the data path."""
    return Topology(
        run=RunConfig(
            name="sim",
            steps=steps,
            mode=Mode.SYNC if sync else Mode.ASYNC,
            checkpoint_every_steps=checkpoint_every,
        ),
        data=DataConfig(prompts="sim:prompts"),
        algorithm=AlgorithmConfig(
            prompts_per_step=prompts, samples_per_prompt=samples, minibatches_per_step=minibatches
        ),
        actors=ActorsConfig(
            rollout=RolloutConfig(**{"trajectories_in_flight_max": 3 * samples, **(rollout or {})}),
            agent=AgentConfig(agent="sim:Agent", replicas=agents, episodes_max=3),
            session=SessionConfig(replicas=sessions),
            engine=EngineConfig(replicas=engines),
            evaluation_engine=EvaluationEngineConfig(replicas=fleet) if fleet else None,
            buffer=BufferConfig(**{"groups_max": 3 * prompts, **(buffer or {})}),
            trainer=TrainerConfig(lr=1.0, ranks=ranks, publish_every_steps=publish_every),
            publisher=PublisherConfig(canary_turn_every=turn_every) if publisher else None,
            evaluator=EvaluatorConfig(
                deadline_s=2000.0,
                every_versions=every_versions,
                overflow=overflow,
                external=external,
            )
            if evaluator
            else None,
        ),
    )


def supervised(*, steps: int = 4, sessions: int = 2, checkpoint_every: int = 1) -> Topology:
    """Recorded conversations instead of episodes: no agents, engines or publisher."""
    return Topology(
        run=RunConfig(name="sim", steps=steps, checkpoint_every_steps=checkpoint_every),
        data=DataConfig(prompts="sim:prompts"),
        algorithm=AlgorithmConfig(estimator="sft", prompts_per_step=3),
        actors=ActorsConfig(
            rollout=RolloutConfig(),
            session=SessionConfig(replicas=sessions),
            buffer=BufferConfig(groups_max=9, journal=False),
            trainer=TrainerConfig(lr=1.0),
        ),
    )


def swarm_topology(random: Random) -> Topology:
    """One of many shapes."""
    buffer: dict[str, Any] = {}
    sync = random.random() < 0.25
    policy = random.choice(("correct", "correct", "drop", "pace"))
    if policy != "correct" and not sync:
        buffer = {
            "staleness_policy": policy,
            "max_weight_staleness": random.choice((0, 1, 2)),
            "late": random.choice(("drop", "retry", "correct")),
            "unused": random.choice(("drop", "retry")),
        }
    if random.random() < 0.3:
        buffer["filters"] = ("zero_spread",)
    if random.random() < 0.15:
        buffer["journal"] = False
    apart = copy(random)
    return topology(
        steps=random.choice((1, 2, 3, 4)),
        prompts=random.choice((1, 2, 3)),
        samples=random.choice((2, 2, 3)),
        sync=sync,
        agents=random.choice((1, 2)),
        sessions=random.choice((1, 2)),
        engines=random.choice((1, 2)),
        ranks=random.choice((1, 1, 2)),
        evaluator=random.random() < 0.4,
        every_versions=random.choice((0, 1, 2)),
        checkpoint_every=random.choice((0, 1, 2)),
        publish_every=random.choice((1, 1, 2)),
        rollout={
            "refill": random.choice(("sample", "sample", "group")),
            "failed": random.choice(("retry", "retry", "drop_group", "smaller_group")),
            **_over_sampling(random, sync=sync, paced=policy == "pace" and not sync),
        },
        buffer=buffer,
        **_fleet(apart),
        **_turns(copy(random)),
    )


def turn_every_of(topology: Topology) -> int:
    """Every so many versions come with a turn for a session; 0: none."""
    publisher = topology.actors.publisher
    return publisher.canary_turn_every if publisher else 0


def _turns(random: Random) -> dict[str, Any]:
    """The canary's turns through sessions, drawn apart as well."""
    random.seed(f"turns/{random.random()}")
    return {"turn_every": random.choice((0, 0, 1, 2))}


def _fleet(random: Random) -> dict[str, Any]:
    """Engines of the evaluator's own. Drawn apart: other shapes stay what their seeds say."""
    random.seed(f"fleet/{random.random()}")
    if random.random() < 0.5:
        return _external(random)
    return {
        "fleet": random.choice((1, 2)),
        "overflow": random.choice(("backpressure", "skip")),
    }


def _external(random: Random) -> dict[str, Any]:
    """A class of the user's measures checkpoints. Drawn last: all other shapes stay."""
    if random.random() < 0.7:
        return {}
    return {"external": "sim:Exam", "overflow": random.choice(("backpressure", "skip"))}


def _over_sampling(random: Random, *, sync: bool, paced: bool) -> dict[str, Any]:
    extra = 0 if paced else random.choice((0, 0, 1, 2))
    return {"over_sampling_groups": extra, "partial_rollout": sync and extra > 1}
