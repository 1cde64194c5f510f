"""Where a process can be started: an interface, and this machine.

A place starts one process, says what it is, signals it, and tells when it has ended. Everything
else (states, deadlines, restarts) is the same for every place.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from milepost.actors.lifeline import DEATH_FD_VARIABLE
from milepost.supervisor.cleanup.processes import RUN_VARIABLE, Identity, identity_of

SIGNALS: Final = {"TERM": signal.SIGTERM, "USR1": signal.SIGUSR1}


@dataclass(frozen=True, slots=True)
class Order:
    """One process to be started.

    Attributes:
        actor: process name.
        spec: file with its `ActorSpec`.
        log: file that gets its standard output and error, appended.
        threads: threads each numerical library may use.
        run_id: written into its environment, so that it and its offspring can be found.
        listen_fd: descriptor of ours that it inherits under the same number; -1 for none.
    """

    actor: str
    spec: Path
    log: Path
    threads: int
    run_id: str
    listen_fd: int = -1


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit code, or the name of the signal that ended it."""

    code: int | None
    signal: str


class Process(Protocol):
    """A started process."""

    @property
    def identity(self) -> Identity:
        """Which process it is; on another host, of its representative here (ssh, srun)."""
        ...

    @property
    def ended(self) -> asyncio.Future[Exit]:
        """Done when the process and everything in its group is gone."""
        ...

    def send_signal(self, name: Literal["TERM", "KILL", "USR1"]) -> None:
        """TERM and USR1 to the process, KILL to its whole group; nothing when it is gone."""
        ...


class Place(Protocol):
    """Starts processes. One object for each run."""

    def start(self, order: Order) -> Process:
        """Start it and return at once.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def close(self) -> None:
        """Let go of what ties the processes to this one; all of them have ended."""
        ...


class LocalPlace:
    """Processes of this machine, each with a group and a session of its own.

    All hold the reading end of one pipe whose writing end only this process has: at its end of
    file they exit, however this process died.

    `subprocess` and a process descriptor are used instead of asyncio's own processes: the
    descriptor becomes readable while the dead process still keeps its number, so that its group
    can be killed without a chance to hit somebody else's.
    """

    def __init__(self) -> None:
        self._death_read, self._death_write = os.pipe()

    def start(self, order: Order) -> LocalProcess:
        """Start one actor here; it must be called on the main thread.

        The kernel sends the parent-death signal when the *thread* that started a child ends.
        """
        inherited = (self._death_read, *((order.listen_fd,) if order.listen_fd >= 0 else ()))
        with order.log.open("ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "milepost.actors", "--spec", str(order.spec)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
                env=self._environment(order, os.environ),
            )
        return LocalProcess(popen)

    def close(self) -> None:
        """Close the death pipe."""
        os.close(self._death_write)
        os.close(self._death_read)

    def _environment(self, order: Order, inherited: Mapping[str, str]) -> dict[str, str]:
        threads = str(order.threads)
        return {
            **inherited,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            RUN_VARIABLE: order.run_id,
            DEATH_FD_VARIABLE: str(self._death_read),
        }


class LocalProcess:
    """A child of this process, watched by its process descriptor."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Exit] = self._loop.create_future()
        identity = identity_of(popen.pid)
        # A process that is dead already has no start time any more; its number is still ours.
        self._identity = identity or Identity(popen.pid, 0, "")
        self._descriptor = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._descriptor, self._collect)

    @property
    def identity(self) -> Identity:
        """Number and start time of the process."""
        return self._identity

    @property
    def ended(self) -> asyncio.Future[Exit]:
        """Done when the process was collected and its group killed."""
        return self._ended

    def send_signal(self, name: Literal["TERM", "KILL", "USR1"]) -> None:
        """TERM and USR1 to the process, KILL to its group."""
        if self._ended.done():
            return
        if name == "KILL":
            os.killpg(self._popen.pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(self._descriptor, SIGNALS[name])

    def _collect(self) -> None:
        # The process is a zombie: it still owns its number, and with it that of its group.
        os.killpg(self._popen.pid, signal.SIGKILL)
        code = self._popen.wait()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        name = signal.Signals(-code).name if code < 0 else ""
        self._ended.set_result(Exit(None if name else code, name))


PLACES: Final[dict[str, Callable[[], Place]]] = {"local": LocalPlace}
"""`system.place` -> what starts processes there. `ssh`, `slurm` and `kubernetes` are to implement
the same `Place`: they run `python -P -m milepost.actors --spec FILE` on another host, over tcp."""
