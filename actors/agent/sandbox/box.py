"""One sandbox: a folder, and commands that run in it, one after the other or side by side."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from milepost.actors.agent.processes import started
from milepost.actors.agent.sandbox.leases import Leases, NoLeases

INSIDE: Final = Path(__file__).with_name("inside.py")
RUN_VARIABLE: Final = "MILEPOST_RUN"
"""Carried along, so that the run's own sweep at its end finds every process of ours, too."""
PREFIX: Final = "milepost-sandbox-"
SEARCH: Final = "/usr/local/bin:/usr/bin:/bin"
PIECE_BYTES: Final = 1 << 16
KILL_S: Final = 5.0
IDLE_S: Final = 1800.0

log = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """The sandbox itself does not work; no verdict on what was run in it."""


class SandboxLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one command. Memory and files are for each of its processes."""

    seconds_max: float = 30.0
    cpu_s_max: int = 30
    memory_bytes_max: int = 1 << 30
    file_bytes_max: int = 1 << 26
    processes_max: int = 64
    output_bytes_max: int = 1 << 16
    """Of standard output, and as much of standard error; the rest is read and dropped."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one command.

    Attributes:
        exit_code: 128 and more: it was ended by signal `exit_code - 128`; -1: its time was up.
        stdout: as text, up to the limit.
        stderr: likewise.
        is_cut: some output was dropped.
        seconds: it took.
    """

    exit_code: int
    stdout: str
    stderr: str
    is_cut: bool
    seconds: float

    @property
    def is_late(self) -> bool:
        """Its time was up."""
        return self.exit_code == -1

    @property
    def text(self) -> str:
        """For the model: output, errors, and how it ended when it did not end well."""
        parts = [self.stdout, self.stderr]
        parts += ["[output cut]"] if self.is_cut else []
        parts += ["[time was up]"] if self.is_late else []
        parts += [f"[exit code {self.exit_code}]"] if self.exit_code > 0 else []
        return "\n".join(part.rstrip("\n") for part in parts if part)


class Sandbox:
    """`async with Sandbox() as box: ran = await box.python("print(1)")`.

    A command gets a user, process, mount and network namespace of its own where the system allows
    that: it sees no network and no processes but its own, and can write only into the box's
    folder. What the system does not allow stands in `weaknesses`, by name, and in the log. Each
    command ends with this process, however that ends; the folder ends with this process, too, or
    once no command was run for `idle_s`: a box that was forgotten is taken away by the run.

    Args:
        limits: of each command.
        network: True: commands reach the network as this process does.
        leases: where the folder is written down.
        idle_s: seconds for which it is kept without a command, at least.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        network: bool = False,
        leases: Leases | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.limits = limits or SandboxLimits()
        self.weaknesses: tuple[str, ...] = ()
        """What the system does not keep from commands; known once one has run."""
        self._network = network
        self._leases = leases or NoLeases()
        self._idle_s = idle_s
        self._taken_s = 0.0
        self._name = f"{PREFIX}{secrets.token_hex(8)}"
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where commands run, and the only place they can write to; empty at first."""
        assert self._folder is not None, "the sandbox is not open"
        return self._folder

    async def __aenter__(self) -> Self:
        """Make the folder, written down first."""
        folder = Path(tempfile.gettempdir()) / self._name
        await self._take(folder)
        folder.mkdir(mode=0o700)
        self._folder = folder
        return self

    async def _take(self, folder: Path) -> None:
        """Hold it for twice the idle time, and for a command that begins at the end of that."""
        self._taken_s = time.monotonic()
        lease_s = 2.0 * self._idle_s + self.limits.seconds_max + KILL_S
        await self._leases.take(self._name, ["rm", "-rf", "--", str(folder)], lease_s)

    async def __aexit__(self, *_: object) -> None:
        """Remove the folder; what cannot be removed now stays written down for the run's end."""
        if await asyncio.to_thread(_removed, self.folder):
            await self._leases.release(self._name)
        else:
            log.warning("sandbox %s cannot be removed yet", self.folder)

    async def _keep(self) -> None:
        if time.monotonic() - self._taken_s > self._idle_s:
            await self._take(self.folder)
        if not self.folder.is_dir():
            text = f"sandbox {self._name} had no command for {self._idle_s} s and was taken away"
            raise SandboxError(text)

    async def python(self, code: str) -> Ran:
        """Run Python code, with this interpreter and its packages.

        Raises:
            SandboxError: the sandbox does not work.
        """
        await self._keep()
        program = self.folder / f"program-{secrets.token_hex(4)}.py"
        program.write_text(code, encoding="utf-8")
        try:
            return await self.run([sys.executable, "-I", str(program)])
        finally:
            program.unlink(missing_ok=True)

    async def shell(self, command: str) -> Ran:
        """Run a line of shell.

        Raises:
            SandboxError: the sandbox does not work.
        """
        return await self.run(["/bin/sh", "-c", command])

    async def run(self, command: list[str]) -> Ran:
        """Run a program with its arguments.

        Raises:
            SandboxError: the sandbox does not work, or was taken away after `idle_s`.
        """
        await self._keep()
        read_fd, status_fd = os.pipe()
        started_s = time.monotonic()
        try:
            creation = asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(INSIDE), self._spec(command, status_fd),
                stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=self.folder,
                env=self._environment(), pass_fds=(status_fd,), start_new_session=True,
            )  # fmt: skip
            process = await started(creation)
        except asyncio.CancelledError:
            os.close(read_fd)
            raise
        except OSError as error:
            os.close(read_fd)
            raise SandboxError(f"no process can be started: {error}") from error
        finally:
            os.close(status_fd)
        assert process.stdout is not None
        assert process.stderr is not None
        bytes_max = self.limits.output_bytes_max
        out = asyncio.create_task(_read(process.stdout, bytes_max), name="sandbox output")
        err = asyncio.create_task(_read(process.stderr, bytes_max), name="sandbox errors")
        code = asyncio.create_task(process.wait(), name="sandbox end")
        try:
            _, late = await asyncio.wait({out, err, code}, timeout=self.limits.seconds_max)
        finally:
            # Also when our caller is cancelled: with this process goes all that it has started.
            if process.returncode is None:
                process.kill()
            status = os.read(read_fd, PIECE_BYTES)
            os.close(read_fd)
        self._note(status)
        if late and (await asyncio.wait(late, timeout=KILL_S))[1]:
            raise SandboxError(f"something of {command[0]} survives SIGKILL and holds its output")
        return Ran(
            exit_code=-1 if late else code.result(),
            stdout=out.result()[0],
            stderr=err.result()[0],
            is_cut=out.result()[1] or err.result()[1],
            seconds=time.monotonic() - started_s,
        )

    def _spec(self, command: list[str], status_fd: int) -> str:
        limits = self.limits
        return json.dumps(
            {
                "command": command,
                "environment": self._environment(),
                "folder": str(self.folder),
                "network": self._network,
                "status_fd": status_fd,
                "limits": {
                    "memory_bytes_max": limits.memory_bytes_max,
                    "cpu_s_max": limits.cpu_s_max,
                    "file_bytes_max": limits.file_bytes_max,
                    "processes_max": limits.processes_max,
                },
            }
        )

    def _environment(self) -> dict[str, str]:
        """Nothing of this process's own but the run's name: no keys, no paths."""
        folder = str(self.folder)
        made = {"PATH": SEARCH, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        run_id = os.environ.get(RUN_VARIABLE, "")
        return {**made, RUN_VARIABLE: run_id} if run_id else made

    def _note(self, status: bytes) -> None:
        weaknesses = tuple(json.loads(status)) if status else self.weaknesses
        if weaknesses != self.weaknesses:
            self.weaknesses = weaknesses
            log.warning("sandbox %s is weak: %s", self._name, "; ".join(weaknesses))


def _removed(folder: Path) -> bool:
    """Remove it with all that is in it; False when something of it stays."""
    for root, names, _ in os.walk(folder):
        for name in names:
            # A command may have closed its folders to its own user, who is ours, too.
            inner = Path(root, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


async def _read(stream: asyncio.StreamReader, bytes_max: int) -> tuple[str, bool]:
    """Everything, as text up to the limit, and whether some was dropped."""
    kept, total = b"", 0
    while piece := await stream.read(PIECE_BYTES):
        kept += piece[: bytes_max - len(kept)]
        total += len(piece)
    return kept.decode(errors="replace"), total > bytes_max
