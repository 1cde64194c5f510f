"""The numbers the evaluator works with, read off the topology once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from milepost.actors.rollout.settings import episode_limits
from milepost.configs.topology import Topology
from milepost.messages.shared import EpisodeLimits, SamplingParams

ROUNDS_OF_ONE_LIFE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSettings:
    """See `EvaluatorConfig`."""

    seed: int
    modes: dict[str, SamplingParams]
    """`sampled` and `greedy`, as configured, in this order."""
    limits: EpisodeLimits
    agents: dict[str, int]
    """Host -> episodes it runs at once; 0 until it says so itself (`AgentReady`)."""
    sessions: tuple[str, ...]
    in_flight_max: int
    at_start: bool
    at_end: bool
    every_versions: int
    deadline_s: float
    transcripts: int
    success_metric: str
    resumed_version: int
    """Version of the checkpoint the run went on from; 0 for a fresh run."""
    waits_for_rollout: bool
    has_fleet: bool = False
    """Engines of its own serve the episodes."""
    overflow: Literal["backpressure", "skip"] = "backpressure"
    external: str = ""
    """The user's class measures checkpoints instead; no episodes."""
    starting_checkpoint: str = ""
    """What version 0 is."""
    resumed_checkpoints: Mapping[int, str] = field(default_factory=dict)
    """Version -> folder: those that were saved up to the one that the run went on from, but for
    the last of all, which the trainer offers again."""
    publish_every: int = 1
    """Versions that are published are multiples of it, but for the last and a resumed one."""
    rounds_before: int = 0
    """Rounds are numbered after this one: a restarted evaluator never uses a name again, under
    which sessions still hold the conversations and answers of the dead one."""

    @classmethod
    def of(
        cls,
        topology: Topology,
        resume_step: int | None,
        incarnation: int = 0,
        folder: Callable[[int], str] = str,
    ) -> EvaluatorSettings:
        """The settings of this topology.

        Args:
            topology: of the run.
            resume_step: version of the checkpoint that it goes on from, if from any.
            incarnation: counts the lives of this evaluator in the run.
            folder: of the checkpoint of a version.

        Raises:
            ValueError: neither sampled, greedy nor external evaluation is on.
        """
        actors, limits = topology.actors, topology.limits
        evaluator = actors.evaluator
        assert evaluator is not None, "the topology has no evaluator"
        modes: dict[str, SamplingParams] = {}
        step, every = resume_step or 0, topology.run.checkpoint_every_steps
        saved = {step, *(range(every, step, every) if every else ())} - {0, topology.run.steps}
        if evaluator.sampled:
            modes["sampled"] = SamplingParams(
                temperature=topology.sampling.temperature,
                top_p=topology.sampling.top_p,
                top_k=topology.sampling.top_k,
                min_p=topology.sampling.min_p,
                tokens_max=limits.reply_tokens_max,
            )
        if evaluator.greedy:
            modes["greedy"] = SamplingParams(temperature=0.0, tokens_max=limits.reply_tokens_max)
        if not modes and not evaluator.external:
            raise ValueError("actors.evaluator.sampled and .greedy are both off: turn one on")
        return cls(
            seed=topology.run.seed,
            modes=modes,
            limits=episode_limits(topology),
            agents=dict.fromkeys(
                evaluation_hosts(topology), actors.agent.episodes_max if actors.agent else 0
            ),
            sessions=topology.names("session"),
            in_flight_max=evaluator.episodes_in_flight_max,
            at_start=evaluator.at_start,
            at_end=evaluator.at_end,
            every_versions=evaluator.every_versions,
            deadline_s=evaluator.deadline_s,
            transcripts=evaluator.transcripts,
            success_metric=topology.data.success_metric if topology.data else "solved",
            resumed_version=resume_step or 0,
            waits_for_rollout=actors.rollout is not None,
            has_fleet=actors.evaluation_engine is not None,
            overflow=evaluator.overflow,
            external=evaluator.external,
            starting_checkpoint=str(topology.model.folder) if topology.model else "",
            resumed_checkpoints={version: folder(version) for version in saved},
            publish_every=actors.trainer.publish_every_steps if actors.trainer else 1,
            rounds_before=incarnation * ROUNDS_OF_ONE_LIFE,
        )


def evaluation_hosts(topology: Topology) -> tuple[str, ...]:
    """Who plays evaluations: the run's own agents, or where it has none, those from outside."""
    return topology.names("agent") or topology.names("guests")
