"""Checks that a resumed run's books and its checkpoint tell of the same training."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from milepost.actors.journal import JournalDamaged
from milepost.actors.rollout.resuming import LedgerAhead, LedgerBehind, recover, resume
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
        resume(ledger, folder, last_checkpoint(folder) or 0)
    except (LedgerBehind, LedgerAhead, JournalDamaged) as error:
        what, _, remedy = str(error).rpartition("; ")
        yield Problem(what, str(path), remedy)
    except (OSError, msgspec.MsgspecError):
        return  # of the checkpoint: told by the check of what a resumed run goes on from
