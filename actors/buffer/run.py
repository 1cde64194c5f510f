"""The buffer's hands: the journal of groups, on a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.journal import GroupJournal
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.work import KeepGroup, WriteMarks
from milepost.actors.context import ActorContext
from milepost.actors.effects import Work


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        JournalDamaged: the groups of the run to go on from cannot be trusted.
        ValueError: the settings contradict each other.
    """
    settings = BufferSettings.of(context.topology)
    config = context.topology.actors.buffer
    assert config is not None
    if not settings.journal:
        fates = Fates(settings.checkpoints_named, version=context.spec.resume_step or 0)
        await context.serve(Buffer.of(settings, fates, ()), facts={"groups": 0})
        return
    folder = context.run_folder / "journal"
    journal = GroupJournal(folder, config.journal_bytes_max, settings.checkpoints_named)
    hand = JournalHand(journal)
    try:
        if context.spec.incarnation == 0:
            journal.go_on_from(context.spec.resume_step or 0, settings.groups_max)
        groups: list[StoredGroup] = journal.recover(settings.groups_max)
        await context.serve(
            Buffer.of(settings, deepcopy(journal.fates), groups),
            facts={"groups": len(groups)},
            perform=hand.perform,
        )
    finally:
        hand.close()


class JournalHand:
    """Writes on one thread, so records land in the order of the core's effects."""

    def __init__(self, journal: GroupJournal) -> None:
        self._journal = journal
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    async def perform(self, work: Work) -> object:
        """Carry out `KeepGroup` or `WriteMarks`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._perform, work)

    def _perform(self, work: Work) -> None:
        match work:
            case KeepGroup():
                self._journal.keep(work.group)
            case WriteMarks():
                write = self._journal.cover if work.covered else self._journal.write
                write(work.marks)
            case _:
                raise TypeError(f"no such work: {work}")

    def close(self) -> None:
        """Finish what was ordered, then close."""
        self._thread.shutdown(wait=True)
        self._journal.close()
