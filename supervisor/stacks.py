"""Python stacks of an actor: by asking it, or by a signal when its loop does not answer."""

from __future__ import annotations

import asyncio
from typing import Final

from milepost.messages.bus import Bus, Unanswered
from milepost.messages.shared import Message
from milepost.messages.supervisor import Refused, Stacks, StacksRequested
from milepost.supervisor.family import Family
from milepost.supervisor.logs import read_piece
from milepost.supervisor.states import Child, Drained, Draining, Greeted, Ready, Running

ASK_S: Final = 2.0
DUMP_S: Final = 2.0
POLL_S: Final = 0.05
DUMP_BYTES_MAX: Final = 1 << 18
LISTENING: Final = (Greeted, Ready, Running, Draining, Drained)
"""States in which the process is known to have its signal handler installed."""


async def stacks_of(child: Child, bus: Bus, family: Family) -> Message:
    """`Stacks` of all threads (and tasks, when it answers itself), or `Refused`.

    An event loop that is stuck in a call cannot answer. Then SIGUSR1 makes the process write
    the stacks of its threads into its log, without help from Python code of its own.
    """
    if not isinstance(child.state, LISTENING):
        return Refused(reason=f"{child.name} is {child.state_name}")
    try:
        return (await bus.ask(child.name, StacksRequested(), deadline_s=ASK_S)).message
    except Unanswered as error:
        reason = error.reason
    path = family.log_of(child.name)
    before = path.stat().st_size
    family.send_signal(child.name, "USR1")
    text = await _appended(family, child.name, before)
    if not text:
        return Refused(reason=f"{child.name} neither answers ({reason}) nor reacts to SIGUSR1")
    return Stacks(text=f"{child.name} does not answer ({reason}); its threads, by signal:\n{text}")


async def _appended(family: Family, actor: str, before: int) -> str:
    """What a log gained since byte `before`, once it has stopped growing."""
    path = family.log_of(actor)
    seen = before
    for _ in range(round(DUMP_S / POLL_S)):
        await asyncio.sleep(POLL_S)
        size = path.stat().st_size
        if size == seen > before:
            break
        seen = size
    data, _ = await asyncio.to_thread(read_piece, path, before, DUMP_BYTES_MAX)
    return data.decode("utf-8", errors="replace")
