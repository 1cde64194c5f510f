"""What actors hold outside of their processes (sandboxes), until it is given back.

Each has a command that gives it back. It is run when its actor dies, when its lease ends without a
word from its owner, and by the reaper when the run is over, however that came about.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL
from typing import Any, Final

from milepost.messages.supervisor import ResourceReleased, ResourceTaken

RELEASE_S: Final = 30.0
RELEASES_AT_ONCE: Final = 4


class Holdings:
    """Everything that is held now, by name.

    Args:
        write_down: appends a record to the registry, from the event loop.
        report: takes the kind and the text of an event for people.
    """

    def __init__(
        self,
        write_down: Callable[[dict[str, Any]], None],
        report: Callable[[str, str], None],
    ) -> None:
        self._write_down = write_down
        self._report = report
        self._held: dict[str, ResourceTaken] = {}
        self._leases: dict[str, asyncio.TimerHandle] = {}
        # Apart from the thread of the registry: a new process is written down at once, whatever
        # hangs here.
        self._hands = ThreadPoolExecutor(RELEASES_AT_ONCE, thread_name_prefix="release")
        self._is_closed = False
        self._running: set[subprocess.Popen[bytes]] = set()
        """Commands at work; each is added and removed by its thread."""

    def take(self, message: ResourceTaken) -> None:
        """It is held from now on; said again, its lease begins again."""
        name, lease_s = message.name, message.lease_s
        self._held[name] = message
        record: dict[str, Any] = {
            "kind": "command",
            "name": name,
            "actor": message.actor,
            "argv": message.release,
        }
        if lease_s:
            record["lease_until"] = time.time() + lease_s
        self._write_down(record)
        self._end_lease(name)
        if lease_s:
            loop = asyncio.get_running_loop()
            self._leases[name] = loop.call_later(lease_s, self._expire, name)

    def release(self, message: ResourceReleased) -> None:
        """Its owner gave it back."""
        self._end_lease(message.name)
        if self._held.pop(message.name, None) is not None:
            self._write_down({"kind": "released", "name": message.name})

    def release_of(self, actor: str) -> None:
        """The actor is gone: all of it is given back."""
        for name in [name for name, held in self._held.items() if held.actor == actor]:
            self._give_back(name)

    def close(self) -> None:
        """Leases end no more; what is held, or being given back, is in the registry.

        A command that is at work is killed: the reaper runs it again, and waits for it by itself.
        """
        self._is_closed = True
        for process in tuple(self._running):
            _kill(process)
        self._hands.shutdown(wait=False, cancel_futures=True)
        for name in list(self._leases):
            self._end_lease(name)

    def _expire(self, name: str) -> None:
        held = self._held[name]
        text = f"{held.actor} did not renew {name} within its {held.lease_s} s: it is given back"
        self._report("lease_ended", text)
        self._give_back(name)

    def _end_lease(self, name: str) -> None:
        if (timer := self._leases.pop(name, None)) is not None:
            timer.cancel()

    def _give_back(self, name: str) -> None:
        self._end_lease(name)
        held = self._held.pop(name)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._hands, self._run, held.release).add_done_callback(
            lambda done: self._given_back(held, "cancelled" if done.cancelled() else done.result())
        )

    def _given_back(self, held: ResourceTaken, problem: str) -> None:
        if self._is_closed or held.name in self._held:
            return  # the reaper has it, or somebody took it again meanwhile
        if problem:
            text = f"{held.name} of {held.actor} is not given back ({problem}), the end will be"
            self._report("not_given_back", f"{text} another try")
        else:
            self._write_down({"kind": "released", "name": held.name})

    def _run(self, argv: list[str]) -> str:
        """Why it failed; what fails stays in the registry, and is tried again at the run's end."""
        try:
            process = subprocess.Popen(
                argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
            )
        except OSError as error:
            return str(error)
        self._running.add(process)
        try:
            if self._is_closed:  # between its start and its place among those that are killed
                _kill(process)
            code = process.wait(RELEASE_S)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.wait()
            return str(error)
        finally:
            self._running.discard(process)
        return f"{argv} returned exit status {code}" if code else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started: it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
