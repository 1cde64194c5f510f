"""The rollout actor's hands: reads prompts and the journal, writes the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from milepost.actors.context import ActorContext
from milepost.actors.effects import Work
from milepost.actors.journal import JournalFile, replace_file
from milepost.actors.rollout.bookkeeping import CompactJournal, WriteRecords
from milepost.actors.rollout.conversations import ConversationRollout
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.prompts import load_train_prompts
from milepost.actors.rollout.promptset import PromptSet, hold_to
from milepost.actors.rollout.records import encode_record
from milepost.actors.rollout.resuming import recover, resume
from milepost.actors.rollout.settings import RolloutSettings
from milepost.configs.spec import ActorSpec


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the prompts cannot be read, or are not those that the run began with.
        JournalDamaged: the ledger of the run to go on from cannot be trusted.
        LedgerBehind, LedgerAhead: see `resume`.
    """
    spec = context.spec
    settings, order = read_prompts(spec)
    assert spec.topology.data is not None, "prompts were read"
    hold_to(context.run_folder, "train", PromptSet.of(spec.topology.data.prompts, order.prompts))
    path = context.run_folder / "journal" / "rollout"
    ledger = recover(path, settings.checkpoints_named)
    hand = JournalHand(path)
    if spec.incarnation == 0:
        step = spec.resume_step or 0
        hand.append(map(encode_record, resume(ledger, context.run_folder, step)))
    try:
        await context.serve(
            make_core(spec, settings, order, ledger),
            facts={"prompts": len(order), "position": ledger.position},
            perform=hand.perform,
        )
    finally:
        hand.close()


def read_prompts(spec: ActorSpec) -> tuple[RolloutSettings, PromptOrder]:
    """What the core works with.

    Raises:
        PromptError: the prompts cannot be read.
    """
    topology = spec.topology
    assert topology.data is not None, "the topology has no [data]"
    prompts = load_train_prompts(topology.data, topology.run.seed)
    order = PromptOrder(prompts, topology.run.seed, shuffle=topology.data.shuffle)
    return RolloutSettings.of(topology, spec.incarnation), order


def make_core(
    spec: ActorSpec, settings: RolloutSettings, order: PromptOrder, ledger: Ledger
) -> ConversationRollout | Rollout:
    """The core in the state that the ledger tells."""
    kind = ConversationRollout if spec.topology.algorithm.estimator == "sft" else Rollout
    return kind.of(settings, order, ledger)


class JournalHand:
    """Writes the journal on one thread, so records land in the order of the core's effects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = JournalFile(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def append(self, payloads: Iterable[bytes]) -> None:
        """Append now, on the caller's thread; only before serving."""
        self._file.append(payloads)

    async def perform(self, work: Work) -> object:
        """Carry out `WriteRecords` or `CompactJournal`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._perform, work)

    def _perform(self, work: Work) -> None:
        match work:
            case WriteRecords():
                self._file.append(map(encode_record, work.records))
                if work.sync:
                    self._file.sync()
            case CompactJournal():
                self._file.close()
                replace_file(self._path, (encode_record(work.snapshot),))
                self._file = JournalFile(self._path)
            case _:
                raise TypeError(f"no such work: {work}")

    def close(self) -> None:
        """Finish what was ordered, then close."""
        self._thread.shutdown(wait=True)
        self._file.close()
