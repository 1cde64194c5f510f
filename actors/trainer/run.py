"""The trainer's hands: one thread that owns torch, one for the door, and never the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.actors.archive.author import Author
from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.archive.layout import Model
from milepost.actors.trainer.core import Trainer
from milepost.actors.trainer.follower import Follower
from milepost.actors.trainer.plan import TrainerPlan
from milepost.actors.trainer.trained import TrainedGroups
from milepost.actors.trainer.works import (
    BatchVerdict,
    CheckBatch,
    KeepMemory,
    ReadBack,
    SendBuckets,
    StepOutcome,
    TrainBatch,
)

if TYPE_CHECKING:
    from milepost.actors.context import ActorContext
    from milepost.actors.effects import Core, Work
    from milepost.actors.trainer.archivist import TrainerArchivist
    from milepost.actors.trainer.fsdp.checkpoint import CheckpointMeta
    from milepost.actors.trainer.fsdp.workshop import Workshop
    from milepost.configs.spec import ActorSpec


class Hands:
    """Carries out the core's orders off the event loop.

    Model work is done on one thread, in the order it was given: that order is the same on every
    rank. The door looks at the next batch on a thread of its own, beside a step being computed.
    """

    def __init__(self) -> None:
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._door = ThreadPoolExecutor(1, thread_name_prefix="door")
        # A broadcast waits for engines, and reading back for the host; a step must not.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._workshop: Workshop | None = None
        self._archivist: TrainerArchivist | None = None

    async def open(self, context: ActorContext) -> Workshop:
        """Load model, optimizer and checkpoint; importing torch takes seconds, too."""
        loop = asyncio.get_running_loop()
        self._workshop = await loop.run_in_executor(self._torch, _open_workshop, context)
        if context.topology.archive.enabled:
            self._archivist = _open_archive(context, self._workshop)
        return self._workshop

    def watched(self, core: Core) -> Core:
        """The core, with the archive in its statistics, if the run has one."""
        if self._archivist is None:
            return core
        from milepost.actors.trainer.archivist import ArchivedTrainer

        return ArchivedTrainer(core, self._archivist.hand)

    async def perform(self, work: Work) -> object:
        """Carry out one order."""
        loop = asyncio.get_running_loop()
        if isinstance(work, CheckBatch):
            return await loop.run_in_executor(self._door, self._check, work)
        assert self._workshop is not None, "work before the workshop is open"
        if isinstance(work, SendBuckets):
            return await loop.run_in_executor(self._sender, self._workshop.send, work)
        if isinstance(work, ReadBack):
            return await loop.run_in_executor(self._sender, self._workshop.perform, work)
        if isinstance(work, KeepMemory):
            # At once, no GPU is asked: an export that is ordered next has the memory already.
            return self._workshop.perform(work)
        if isinstance(work, TrainBatch):
            return await loop.run_in_executor(self._torch, self._train, self._workshop, work)
        return await loop.run_in_executor(self._torch, self._workshop.perform, work)

    def _check(self, work: CheckBatch) -> BatchVerdict:
        from milepost.actors.trainer.door import check_batch

        verdict = check_batch(work.batch, work.rules)
        if self._archivist is not None:
            self._archivist.checked(work.batch, work.rules, verdict)
        return verdict

    def _train(self, workshop: Workshop, work: TrainBatch) -> StepOutcome:
        outcome = workshop.perform(work)
        assert isinstance(outcome, StepOutcome), outcome
        if self._archivist is not None:
            self._archivist.trained(work.batch, outcome, workshop.take_logprobs())
        return outcome

    def close(self) -> None:
        """Finish what has begun, forget what has not, leave the group of ranks."""
        self._door.shutdown(cancel_futures=True)
        self._sender.shutdown(wait=False, cancel_futures=True)
        if self._workshop is not None:
            self._torch.submit(self._workshop.close)
        self._torch.shutdown()
        if self._archivist is not None:
            self._archivist.hand.close()


async def run(context: ActorContext) -> None:
    """Serve until stopped; rank 0 leads, the others follow.

    Raises:
        RuntimeError: a rank was restarted alone; its weights and moments died with it.
        ModelRefused, CheckpointDamaged, ValueError: see `Workshop`.
    """
    if context.spec.incarnation > 0:
        raise RuntimeError(
            f"{context.name} cannot go on by itself after a failure: resume the run from its last "
            f"checkpoint, and leave actors.trainer.restart.policy at temporary"
        )
    hands = Hands()
    try:
        workshop = await hands.open(context)
        core = hands.watched(make_core(context.spec, workshop))
        await context.serve(core, facts=workshop.facts(), perform=hands.perform)
    finally:
        hands.close()


def make_core(spec: ActorSpec, workshop: Workshop, *, fresh: bool = False) -> Trainer | Follower:
    """The core of this rank, in the state of the workshop's checkpoint.

    Args:
        spec: which rank.
        workshop: of the rank.
        fresh: in the state before the first step, whatever the workshop has loaded.

    Raises:
        ValueError: see `TrainerPlan.of`.
    """
    plan = TrainerPlan.of(spec.topology)
    if spec.index > 0:
        return Follower.of(plan, spec.index, workshop.model)
    meta = None if fresh else workshop.meta
    if meta is None:
        return Trainer.of(plan, model=workshop.model, version=0, trained=TrainedGroups())
    return Trainer.of(
        plan,
        model=workshop.model,
        version=meta.step,
        trained=_trained(meta),
        checkpoint=str(Path(spec.run_folder) / "checkpoints" / f"step_{meta.step:06d}"),
    )


def _trained(meta: CheckpointMeta) -> TrainedGroups:
    trained = TrainedGroups(meta.trained_before)
    trained.add(meta.step, meta.trained_group_ids)
    return trained


def _open_workshop(context: ActorContext) -> Workshop:
    from milepost.actors.trainer.fsdp.workshop import Bench, Workshop

    return Workshop(
        Bench(
            topology=context.topology,
            rank=context.index,
            run_id=context.spec.run_id,
            run_folder=context.run_folder,
            resume_step=context.spec.resume_step,
            allocate=partial(context.bus.allocate, to=TrainerPlan.of(context.topology).publisher),
        )
    )


def _open_archive(context: ActorContext, workshop: Workshop) -> TrainerArchivist:
    from milepost.actors.trainer.archivist import TrainerArchivist

    facts = workshop.model
    model = Model(
        vocabulary=facts.vocabulary,
        tokenizer_hash=facts.tokenizer_hash,
        template_hash=facts.template_hash,
        keeps_caches=TrainerPlan.of(context.topology).keeps_caches,
        routes=facts.routes if context.topology.algorithm.replay_routes else None,
    )
    author = Author.of(context.spec, model)
    topology = context.topology
    return TrainerArchivist(ArchiveHand(author, topology.archive), topology.algorithm)
