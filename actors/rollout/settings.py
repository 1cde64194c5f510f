"""The numbers the rollout actor works with, read off the topology once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from milepost.configs.topology import Topology
from milepost.messages.shared import EpisodeLimits, SamplingParams

ATTEMPTS_OF_ONE_LIFE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """See `RolloutConfig` for what most of them mean."""

    seed: int
    group_size: int
    """Trajectories of one group; 1 for imported conversations."""
    groups_per_step: int
    in_flight_max: int
    refill: Literal["sample", "group"]
    retries_max: int
    failed: Literal["retry", "drop_group", "smaller_group"]
    lease_s: float
    sampling: SamplingParams
    limits: EpisodeLimits
    agents: dict[str, int]
    """Host -> episodes it runs at once, until it says otherwise."""
    sessions: tuple[str, ...]
    waits_for: frozenset[str]
    """What must have come before anything is issued: `store`, `version`, `evaluation`."""
    checkpoints_named: int
    """How many checkpoints back a resume may go."""
    describes_prompts: bool = False
    """The buffer's filters are told label and metadata of each prompt."""
    attempt_first: int = 0
    """Attempts count from here: a restarted rollout actor never reuses an attempt."""

    @classmethod
    def of(cls, topology: Topology, incarnation: int = 0) -> RolloutSettings:
        """The settings of this topology.

        Raises:
            ValueError: the budget is smaller than one group, which could then never be sent out.
        """
        actors, algorithm = topology.actors, topology.algorithm
        rollout = actors.rollout
        assert rollout is not None, "the topology has no rollout actor"
        imports = algorithm.estimator == "sft"
        group_size = 1 if imports else algorithm.samples_per_prompt
        if rollout.trajectories_in_flight_max < group_size:
            raise ValueError(
                f"actors.rollout.trajectories_in_flight_max is "
                f"{rollout.trajectories_in_flight_max}, less than one group of "
                f"algorithm.samples_per_prompt = {group_size}: raise it to {group_size} or more"
            )
        waits_for = {"store"}
        if actors.publisher is not None:
            waits_for.add("version")
        evaluator = actors.evaluator
        shares_engines = actors.evaluation_engine is None
        if evaluator and evaluator.at_start and shares_engines and not evaluator.external:
            waits_for.add("evaluation")
        limits = topology.limits
        return cls(
            seed=topology.run.seed,
            group_size=group_size,
            groups_per_step=algorithm.prompts_per_step,
            in_flight_max=rollout.trajectories_in_flight_max,
            refill=rollout.refill,
            retries_max=rollout.episode_retries_max,
            failed=rollout.failed,
            lease_s=rollout.lease_s,
            sampling=SamplingParams(
                temperature=topology.sampling.temperature,
                top_p=topology.sampling.top_p,
                top_k=topology.sampling.top_k,
                min_p=topology.sampling.min_p,
                tokens_max=limits.reply_tokens_max,
            ),
            limits=episode_limits(topology),
            agents={
                name: actors.agent.episodes_max for name in topology.names("agent") if actors.agent
            },
            sessions=topology.names("session"),
            waits_for=frozenset(waits_for),
            checkpoints_named=topology.run.checkpoints_keep,
            describes_prompts=actors.buffer is not None
            and any(":" in name for name in actors.buffer.filters),
            attempt_first=incarnation * ATTEMPTS_OF_ONE_LIFE,
        )


def episode_limits(topology: Topology) -> EpisodeLimits:
    """`[limits]` as they travel with an episode."""
    limits = topology.limits
    return EpisodeLimits(
        turns_max=limits.turns_max,
        seconds_max=limits.seconds_max,
        reply_tokens_max=limits.reply_tokens_max,
        tokens_max=limits.tokens_max,
    )
