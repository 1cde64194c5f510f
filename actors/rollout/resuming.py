"""The ledger as its journal tells it, and how it goes on from a checkpoint of the trainer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from milepost.actors.journal import read_records
from milepost.actors.rollout.ledger import Ledger
from milepost.actors.rollout.records import Record, decode_record


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


class LedgerMismatch(RuntimeError):
    """The journal and the checkpoint tell of different training.

    Args:
        what: is wrong, with both counts.
        remedy: what a person can do.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


class LedgerBehind(LedgerMismatch):
    """The journal does not know what the checkpoint takes it to know."""


class LedgerAhead(LedgerMismatch):
    """The journal forgot the names of groups that were trained after the checkpoint."""


class _Meta(msgspec.Struct, frozen=True):
    """What matters here of the trainer's meta.json."""

    trained_group_ids: tuple[str, ...]
    trained_before: int = 0


def resume(ledger: Ledger, run_folder: Path, step: int) -> list[Record]:
    """Have the ledger go on from the trainer's checkpoint of `step`; 0: from the start.

    Returns the records that were applied, to be written down.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        LedgerBehind: names of trained groups are neither in the checkpoint nor in the journal.
        LedgerAhead: groups count as trained that the checkpoint's weights never saw.
    """
    if step == 0:
        return ledger.resume(0, ())
    path = run_folder / "checkpoints" / f"step_{step:06d}" / "meta.json"
    meta = msgspec.json.decode(path.read_bytes(), type=_Meta)
    records = ledger.resume(step, meta.trained_group_ids)
    trained = meta.trained_before + len(meta.trained_group_ids)
    if ledger.num_trained < trained:
        raise LedgerBehind(
            f"{path} counts {trained} trained groups, {run_folder}/journal/rollout knows of "
            f"{ledger.num_trained}: its journal was lost or is of another run, and going on would "
            "train those groups again",
            "put it back, or start a fresh run from the checkpoint's hf",
        )
    if ledger.num_trained > trained:
        raise LedgerAhead(
            f"{path} counts {trained} trained groups, {run_folder}/journal/rollout knows of "
            f"{ledger.num_trained}, and not by name any more: the run had newer checkpoints, and "
            "going on from this one would skip what was trained after it",
            "put the newer one back, remove all checkpoints to begin again, or start a fresh run "
            "from this one's hf",
        )
    return records
