"""The buffer's hands: journal, archive and the user's filters, each on a thread of its own."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from copy import deepcopy

from milepost.actors.archive.author import Author
from milepost.actors.archive.hand import ArchiveHand
from milepost.actors.buffer.archivist import ArchivedBuffer
from milepost.actors.buffer.core import Buffer
from milepost.actors.buffer.filters import FilterError, first_reason
from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.journal import GroupJournal
from milepost.actors.buffer.marks import Fates
from milepost.actors.buffer.settings import BufferSettings
from milepost.actors.buffer.work import JudgeGroup, KeepGroup, WriteMarks
from milepost.actors.context import ActorContext
from milepost.actors.effects import Core, Work


async def run(context: ActorContext) -> None:
    """Serve until stopped.

    Raises:
        JournalDamaged: the groups of the run to go on from cannot be trusted.
        ValueError: the settings contradict each other.
    """
    settings = BufferSettings.of(context.topology)
    config = context.topology.actors.buffer
    assert config is not None
    with ExitStack() as stack:
        judge = FilterHand(config.filter_deadline_s)
        stack.callback(judge.close)
        if not settings.journal:
            fates = Fates(settings.checkpoints_named, version=context.spec.resume_step or 0)
            core = await _archived(context, Buffer.of(settings, fates, ()), stack)
            await context.serve(core, facts={"groups": 0}, perform=judge.perform)
            return
        folder = context.run_folder / "journal"
        journal = GroupJournal(folder, config.journal_bytes_max, settings.checkpoints_named)
        hand = JournalHand(journal)
        stack.callback(hand.close)

        async def perform(work: Work) -> object:
            return await (judge if isinstance(work, JudgeGroup) else hand).perform(work)

        if context.spec.incarnation == 0:
            journal.go_on_from(context.spec.resume_step or 0, settings.groups_max)
        groups: list[StoredGroup] = journal.recover(settings.groups_max)
        buffer = Buffer.of(settings, deepcopy(journal.fates), groups)
        await context.serve(
            await _archived(context, buffer, stack),
            facts={"groups": len(groups)},
            perform=perform,
        )


async def _archived(context: ActorContext, core: Buffer, stack: ExitStack) -> Core:
    """The core, watched by whoever writes the archive, if the run has one."""
    config = context.topology.archive
    if not config.enabled:
        return core
    hand = ArchiveHand(Author.of(context.spec), config, keeps_index=True)
    stack.callback(hand.close)
    await hand.begin()
    spec = context.spec
    # Without a checkpoint it begins anew, also where a life before it trained something.
    return ArchivedBuffer(core, hand, spec.resume_step or 0 if spec.incarnation == 0 else None)


class FilterHand:
    """Calls the filters on a thread of its own; a call has a deadline, and a late one a name."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        # A thread that hangs cannot be stopped, only left behind: the process ends by `os._exit`.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="filters")
        self._turn = asyncio.Lock()

    async def perform(self, work: Work) -> object:
        """Carry out `JudgeGroup`.

        Raises:
            FilterError: a filter took too long, or answered something that is no text.
        """
        assert isinstance(work, JudgeGroup), work
        # The deadline is of one group: the wait for those before it, which have their own, is none
        # of it.
        async with self._turn:
            loop, began_s = asyncio.get_running_loop(), time.monotonic()
            call = loop.run_in_executor(self._thread, first_reason, work.filters, work.candidate)
            done, _ = await asyncio.wait({call}, timeout=self._deadline_s)
        if not done:
            names = ", ".join(getattr(each, "__name__", str(each)) for each in work.filters)
            raise FilterError(
                f"{names} did not answer within {time.monotonic() - began_s:.1f} s, "
                f"actors.buffer.filter_deadline_s is {self._deadline_s}"
            )
        return call.result()

    def close(self) -> None:
        """Wait for nobody."""
        self._thread.shutdown(wait=False, cancel_futures=True)


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
