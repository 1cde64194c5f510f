"""The rollout actor's hands: reads prompts and the journal, writes the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from milepost.actors.context import ActorContext
from milepost.actors.effects import Work
from milepost.actors.journal import JournalFile, read_records, replace_file
from milepost.actors.rollout.bookkeeping import CompactJournal, WriteRecords
from milepost.actors.rollout.conversations import ConversationRollout
from milepost.actors.rollout.core import Rollout
from milepost.actors.rollout.cursor import PromptOrder
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.prompts import load_train_prompts
from milepost.actors.rollout.records import decode_record, encode_record
from milepost.actors.rollout.settings import RolloutSettings


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        PromptError: the prompts cannot be read.
        JournalDamaged: the ledger of the run to go on from cannot be trusted.
    """
    topology, spec = context.topology, context.spec
    assert topology.data is not None, "the topology has no [data]"
    settings = RolloutSettings.of(topology, spec.incarnation)
    prompts = load_train_prompts(topology.data, topology.run.seed)
    order = PromptOrder(prompts, topology.run.seed, shuffle=topology.data.shuffle)
    path = context.run_folder / "journal" / "rollout"
    ledger = recover(path, settings.checkpoints_named)
    hand = JournalHand(path)
    if spec.incarnation == 0:
        step = spec.resume_step or 0
        trained = trained_groups(context.run_folder, step)
        hand.append(map(encode_record, ledger.resume(step, trained)))
    kind = ConversationRollout if topology.algorithm.estimator == "sft" else Rollout
    try:
        await context.serve(
            kind.of(settings, order, ledger),
            facts={"prompts": len(prompts), "position": ledger.position},
            perform=hand.perform,
        )
    finally:
        hand.close()


def recover(path: Path, checkpoints_named: int) -> Ledger:
    """The ledger as its journal tells it; empty when there is none.

    Raises:
        JournalDamaged: see `read_records`.
    """
    ledger = Ledger(checkpoints_named=checkpoints_named)
    for payload in read_records(path):
        ledger.apply(decode_record(payload))
    ledger.validate()
    return ledger


def trained_groups(run_folder: Path, step: int) -> tuple[str, ...]:
    """What the trainer's checkpoint of `step` says was trained; nothing at step 0.

    Raises:
        FileNotFoundError: there is no such checkpoint.
    """
    if step == 0:
        return ()
    meta = run_folder / "checkpoints" / f"step_{step:06d}" / "meta.json"
    return msgspec.json.decode(meta.read_bytes(), type=_Meta).trained_group_ids


class _Meta(msgspec.Struct, frozen=True):
    trained_group_ids: tuple[str, ...]


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
