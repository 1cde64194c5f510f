"""The numbers the buffer works with, read off the topology once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from milepost.actors.buffer.filters import Filter, load_filters
from milepost.configs.run import Mode
from milepost.configs.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSettings:
    """See `BufferConfig` for what most of them mean."""

    steps: int
    groups_per_step: int
    group_size: int
    num_minibatches: int
    groups_max: int
    imports: bool
    """Conversations come as groups of one that nobody announces."""
    pace: int | None
    """A group is only issued if it can be consumed while the published version is at most this many
    after the one published now; None: no such bound."""
    publish_every: int
    """Batches from one published version to the next."""
    sync: bool
    """Rollout and training take turns."""
    over_sampled: int
    """Groups issued beyond what batches need."""
    partial: bool
    """Synchronous: those that miss their batch go on, into the next one."""
    retries_unused: bool
    """Dropped groups are issued again, but for those that filters drop."""
    staleness_max: int | None
    """Groups whose S_old is larger meet `late`."""
    late: Literal["drop", "retry", "correct"]
    filters: tuple[Filter, ...]
    filtered_in_a_row_max: int
    """Groups the filters may drop without keeping one in between; 0: no such bound."""
    journal: bool
    success_metric: str
    checkpoints_named: int
    history: Literal["linear", "tree"] = "linear"
    """Of the sessions that the rows come from."""
    num_engines: int = 1
    """That sample for the batches."""

    @classmethod
    def of(cls, topology: Topology) -> BufferSettings:
        """The settings of this topology.

        Raises:
            ValueError: the buffer is smaller than one batch, paces without a limit, or would be
                started again without a journal.
            FilterError: a filter cannot be used.
        """
        buffer, algorithm = topology.actors.buffer, topology.algorithm
        assert buffer is not None, "the topology has no buffer"
        groups_per_step = algorithm.prompts_per_step
        if buffer.groups_max < groups_per_step:
            raise ValueError(
                f"actors.buffer.groups_max is {buffer.groups_max}, less than one batch of "
                f"algorithm.prompts_per_step = {groups_per_step}: raise it to that or more"
            )
        if not buffer.journal and buffer.restart.policy != "temporary":
            raise ValueError(
                f"actors.buffer.restart.policy is `{buffer.restart.policy}` and "
                f"actors.buffer.journal is off: a restarted buffer could not tell what is being "
                f"trained; keep the journal, or let the run stop (`temporary`)"
            )
        imports = algorithm.estimator == "sft"
        rollout = topology.actors.rollout
        return cls(
            steps=topology.run.steps,
            groups_per_step=groups_per_step,
            group_size=1 if imports else algorithm.samples_per_prompt,
            num_minibatches=algorithm.minibatches_per_step,
            groups_max=buffer.groups_max,
            imports=imports,
            pace=_pace(topology),
            publish_every=topology.actors.trainer.publish_every_steps
            if topology.actors.trainer
            else 1,
            sync=topology.run.mode is Mode.SYNC,
            over_sampled=rollout.over_sampling_groups if rollout else 0,
            partial=rollout.partial_rollout if rollout else False,
            retries_unused=buffer.unused == "retry",
            staleness_max=buffer.max_weight_staleness,
            late=_late(topology),
            filters=load_filters(buffer.filters),
            filtered_in_a_row_max=topology.guard.groups_filtered_in_a_row_max,
            journal=buffer.journal and not imports,
            success_metric=topology.data.success_metric if topology.data else "solved",
            checkpoints_named=topology.run.checkpoints_keep,
            history=topology.actors.session.history if topology.actors.session else "linear",
            num_engines=topology.actors.engine.replicas if topology.actors.engine else 1,
        )


def _pace(topology: Topology) -> int | None:
    buffer = topology.actors.buffer
    assert buffer is not None
    if topology.actors.publisher is None:
        return None
    if topology.run.mode is Mode.SYNC:
        return 0
    if buffer.staleness_policy != "pace":
        return None
    if buffer.max_weight_staleness is None:
        raise ValueError(
            "actors.buffer.staleness_policy is `pace` and actors.buffer.max_weight_staleness is "
            "not set: there is nothing to pace by, set a number of versions"
        )
    return buffer.max_weight_staleness


def _late(topology: Topology) -> Literal["drop", "retry", "correct"]:
    buffer = topology.actors.buffer
    assert buffer is not None
    match buffer.staleness_policy:
        case "drop":
            return buffer.unused
        case "correct":
            return "correct"
        case "pace":
            return buffer.late
