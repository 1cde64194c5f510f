"""Checks that a resumed run's books and its checkpoint tell of the same training."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from milepost.actors.journal import JournalDamaged
from milepost.actors.rollout.resuming import LedgerMismatch, recover, resume
from milepost.configs.problem import Problem
from milepost.supervisor.checkpoints import last_checkpoint
from milepost.supervisor.checks.check import Finding, Subject


def ledger_fits(subject: Subject) -> Iterator[Finding]:
    """A ledger that is lost, damaged, or knows of training that the checkpoint never saw.

    The rollout actor would refuse it, too; but by then the buffer and the metrics would already
    have gone back to that checkpoint.
    """
    folder = subject.run_folder
    if not subject.resuming or folder is None:
        return
    path = folder / "journal" / "rollout"
    try:
        ledger = recover(path, subject.topology.run.checkpoints_keep)
    except (JournalDamaged, msgspec.MsgspecError, OSError) as error:
        what = f"the ledger of the run to resume cannot be read: {error}"
        yield Problem(what, str(path), "put a copy of it back, or start a fresh run")
        return
    try:
        resume(ledger, folder, last_checkpoint(folder) or 0)
    except LedgerMismatch as error:
        yield Problem(error.what, str(path), error.remedy)
    except (OSError, msgspec.MsgspecError):
        return  # its meta.json is damaged, which the check of the checkpoint has told
