"""The numbers the trainer's cores work with, read off the topology once."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.configs.run import Mode
from milepost.configs.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    """See `[run]`, `[algorithm]`, `[guard]` and `[actors.trainer]` for what most of them mean."""

    ranks: tuple[str, ...]
    """Names of all ranks; the first one leads."""
    buffer: str
    publisher: str
    """Empty when the run has none."""
    checkpoint_listeners: tuple[str, ...]
    final_listeners: tuple[str, ...]
    """Who must hear that no version will follow."""
    steps: int
    sft: bool
    sync: bool
    """Wait for the published version before the next batch."""
    prefetch: bool
    """Ask for the next batch while one is trained."""
    publish_every_steps: int
    checkpoint_every_steps: int
    staleness_max: int | None
    keeps_caches: bool
    """Engines change weights in place, under keys and values of older versions."""
    refuses_stale: bool
    """False: a group beyond the limit is trained all the same, and corrected."""
    batches_without_spread_max: int
    logprob_difference_max: float
    ask_s: float
    publish_s: float
    """Longest wait for a published version where nothing can go on without it."""
    offers_to: str = ""
    """Who measures checkpoints, and lets training go on when it has taken one; empty: nobody."""
    replays_routes: bool = False
    """Every row brings the experts that computed it, and goes through these."""
    offer_s: float = 0.0
    """An offer without an answer for longer is repeated."""

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return len(self.ranks)

    @classmethod
    def of(cls, topology: Topology) -> TrainerPlan:
        """The plan of this topology.

        Prefetching hands a batch out one step early. Where a limit on staleness stands, or rollout
        and training take turns, the buffer shall judge ages as late as it can: no prefetch there.

        Raises:
            ValueError: no trainer, a KL term without a reference model.
        """
        trainer, buffer = topology.actors.trainer, topology.actors.buffer
        if trainer is None or buffer is None:
            raise ValueError("a trainer needs the tables [actors.trainer] and [actors.buffer]")
        if topology.algorithm.kl_coef:
            raise ValueError(
                f"algorithm.kl_coef is {topology.algorithm.kl_coef}, but no reference model can be "
                f"configured: set it to 0"
            )
        publisher = topology.actors.publisher
        evaluator = topology.actors.evaluator
        # An evaluation holds the version it measures; the publication waits for its lease.
        held_s = evaluator.deadline_s if evaluator else 0.0
        sync = topology.run.mode is Mode.SYNC and publisher is not None
        policy = buffer.staleness_policy
        return cls(
            ranks=topology.names("trainer"),
            buffer="buffer",
            publisher="publisher" if publisher else "",
            checkpoint_listeners=("buffer", *topology.names("rollout")),
            final_listeners=topology.names("evaluator"),
            steps=topology.run.steps,
            sft=topology.algorithm.estimator == "sft",
            sync=sync,
            prefetch=not sync and buffer.max_weight_staleness is None,
            publish_every_steps=trainer.publish_every_steps,
            checkpoint_every_steps=topology.run.checkpoint_every_steps,
            staleness_max=buffer.max_weight_staleness,
            keeps_caches=publisher is not None and publisher.pause == "in_place",
            replays_routes=topology.algorithm.replay_routes,
            refuses_stale=policy == "drop" or (policy == "pace" and buffer.late != "correct"),
            batches_without_spread_max=topology.guard.batches_without_spread_max,
            logprob_difference_max=topology.guard.logprob_difference_max,
            ask_s=topology.system.timeouts.ask_s,
            publish_s=2 * (publisher.epoch_deadline_s if publisher else 0.0) + held_s,
            offers_to="evaluator" if evaluator and evaluator.external else "",
            offer_s=held_s + topology.system.timeouts.ask_s,
        )
