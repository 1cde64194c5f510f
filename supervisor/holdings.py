"""What actors hold outside of their processes (sandboxes), until it is given back.

Each has a command that gives it back. It is run when its actor dies, when its lease ends without a
word from its owner, and by the reaper when the run is over, however that came about.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from milepost.messages.supervisor import ResourceReleased, ResourceTaken

RELEASE_S: Final = 30.0


class Holdings:
    """Everything that is held now, by name.

    Args:
        disk: the one thread that writes the registry; commands run there, too.
        write_down: appends a record to the registry, from the event loop.
        append: the same, blocking, from the thread.
        report: takes the kind and the text of an event for people.
    """

    def __init__(
        self,
        disk: Executor,
        write_down: Callable[[dict[str, Any]], None],
        append: Callable[[dict[str, Any]], None],
        report: Callable[[str, str], None],
    ) -> None:
        self._disk = disk
        self._write_down = write_down
        self._append = append
        self._report = report
        self._held: dict[str, ResourceTaken] = {}
        self._leases: dict[str, asyncio.TimerHandle] = {}

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
        """Leases end no more; what is held is in the registry."""
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
        self._disk.submit(self._run, name, self._held.pop(name).release)

    def _run(self, name: str, argv: list[str]) -> None:
        """What fails stays in the registry, and is tried again at the end of the run."""
        try:
            subprocess.run(
                argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=RELEASE_S
            )
        except (OSError, subprocess.SubprocessError):
            return
        self._append({"kind": "released", "name": name})
