"""A program that comes through the guests' door, as the agent that is checked.

The door, its lobby and its mailbox are those of a run; the program is started with an invitation
to it, in whatever language it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from milepost.actors.agent.processes import kill_all, started
from milepost.actors.agent.run import AgentError
from milepost.actors.guests.door import LIMITS, Door, GuestHost
from milepost.actors.guests.invitation import INVITATION, open_doorway
from milepost.actors.guests.lobby import Lobby
from milepost.actors.guests.run import DOOR
from milepost.messages.bus import Bus
from milepost.messages.guests import Goodbye

PLACE: Final = "{invitation}"
"""In the words of the command: where the path of the invitation goes."""
START_S: Final = 60.0
END_S: Final = 10.0
SILENCE_S: Final = 20.0
EPISODES_MAX: Final = 1024
RUN_ID: Final = "agent-check"


class Program:
    """The program, joined.

    Attributes:
        agent: has it run episodes.
    """

    def __init__(self, door: Door, process: asyncio.subprocess.Process) -> None:
        self.agent = GuestHost(door)
        self._door = door
        self._process = process

    async def say_goodbye(self) -> str:
        """The run ends; what the program does wrong then, or an empty string."""
        self._door.say_goodbye(Goodbye(status="done", reason="every check was made"))
        ended = asyncio.create_task(self._process.wait(), name="program")
        await asyncio.wait({ended}, timeout=END_S)
        if not ended.done():
            return f"it goes on {END_S:g} s after the goodbye; leave, and end the program"
        code = self._process.returncode
        return f"it ended with exit code {code}, the run was done" if code else ""


@contextlib.asynccontextmanager
async def visiting(command: list[str], folder: Path) -> AsyncIterator[Program]:
    """Open the door, start the program, and wait until it offers room; kill it at the end.

    Args:
        command: its words; `{invitation}` in them becomes the invitation's path.
        folder: private, for the door.

    Raises:
        AgentError: it cannot be started, ends at once, or does not join.
    """
    doorway = open_doorway("ipc", folder, RUN_ID, folder)
    bus = await Bus.open(
        name=DOOR, incarnation=0, run_id=RUN_ID, addresses={DOOR: doorway.address}, limits=LIMITS
    )
    heartbeat_s = SILENCE_S / 4
    lobby = Lobby(
        guests_max=64, episodes_max=EPISODES_MAX, silence_s=SILENCE_S, heartbeat_s=heartbeat_s
    )
    door = Door(
        bus,
        lobby,
        heartbeat_s=heartbeat_s,
        silence_s=SILENCE_S,
        data_options={},
        takes_parallel=False,
    )
    serving = asyncio.create_task(door.serve(), name="guests")
    words = [word.replace(PLACE, str(folder / INVITATION)) for word in command]
    try:
        process = await _start(words)
        try:
            await _joined(door, process)
            yield Program(door, process)
        finally:
            kill_all(process)
            await process.wait()
    finally:
        await door.close()
        await serving


async def _start(words: list[str]) -> asyncio.subprocess.Process:
    creation = asyncio.create_subprocess_exec(*words, stdout=sys.stderr, start_new_session=True)
    try:
        return await started(creation)
    except OSError as error:
        raise AgentError(f"{words[0]} cannot be started: {error}") from error


async def _joined(door: Door, process: asyncio.subprocess.Process) -> None:
    room = asyncio.create_task(door.room_other_than(0), name="room")
    ended = asyncio.create_task(process.wait(), name="program")
    tasks = {room, ended}
    await asyncio.wait(tasks, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    has_joined, has_ended = room.done(), ended.done()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    if has_ended:
        raise AgentError(f"the program ended with exit code {process.returncode} before it joined")
    if not has_joined:
        raise AgentError(f"the program did not offer to run episodes within {START_S:g} s")
