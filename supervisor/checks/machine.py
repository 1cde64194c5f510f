"""What this machine has, looked at once, and the checks that it is enough."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from packaging.requirements import Requirement

from milepost.configs.problem import ConfigError, Problem
from milepost.supervisor.cleanup.reaper import FOLDER_PREFIX
from milepost.supervisor.recording.tracker import trackers_of
from milepost.supervisor.sockets import endpoint

if TYPE_CHECKING:
    from milepost.supervisor.checks.check import Finding, Subject

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the system's own place for it
MEBIBYTE: Final = 1 << 20
LOGS_BYTES: Final = 256 * MEBIBYTE
"""Room for logs, metrics and journals of a run."""
OPTIMIZER_FACTOR: Final = 4
"""A checkpoint holds weights, two moments of Adam, and the weights once more as a Hugging Face
folder."""
RANDOM_CHARS: Final = 8
"""What tempfile adds to a name."""
FILES_EACH: Final = 64
"""Open files of one process, without its links."""
PROCESS_BYTES: Final = 96 * MEBIBYTE
"""A process of ours without torch, roughly."""
TORCH_BYTES: Final = 320 * MEBIBYTE
"""What torch and transformers add to a process, roughly."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts. `Machine.look` finds them; tests write them down.

    Attributes:
        disk_free_bytes: where the run will write.
        writable: whether we may write there.
        shared_memory_free_bytes: of /dev/shm; None where the system has no such place.
        memory_available_bytes: what new processes can have without swapping.
        open_files_max: soft limit of one process.
        temporary_folder: where the sockets' folder is made.
        requirements: each requirement of milepost, with the installed version ("" when missing).
        asserts: whether `assert` is executed.
        curve: whether sockets over tcp can be encrypted.
    """

    disk_free_bytes: int
    writable: bool
    shared_memory_free_bytes: int | None
    memory_available_bytes: int
    open_files_max: int
    temporary_folder: str
    requirements: tuple[tuple[str, str], ...]
    asserts: bool
    curve: bool

    @classmethod
    def look(cls, folder: Path) -> Machine:
        """Look at the machine; `folder` is where the run will write, made or not."""
        import zmq  # a fifth of the time that `--help` takes

        existing = next(
            path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
        )
        shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            disk_free_bytes=shutil.disk_usage(existing).free,
            writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
            shared_memory_free_bytes=shutil.disk_usage(shared).free if shared else None,
            memory_available_bytes=psutil.virtual_memory().available,
            open_files_max=sys.maxsize if soft == resource.RLIM_INFINITY else soft,
            temporary_folder=tempfile.gettempdir(),
            requirements=_requirements(),
            asserts=__debug__,
            curve=zmq.has("curve"),
        )


def _requirements() -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for text in metadata.requires("milepost") or ():
        requirement = Requirement(text)
        # Extras are what a user asks for; a missing one is told by the recipe that needs it.
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found.append((text, metadata.version(requirement.name)))
        except metadata.PackageNotFoundError:
            found.append((text, ""))
    return tuple(found)


def python_asserts(subject: Subject) -> Iterator[Finding]:
    """A broken invariant that does not stop the process that broke it."""
    if not subject.machine.asserts:
        what = "assertions are switched off"
        yield Problem(what, "PYTHONOPTIMIZE", "start Python without -O")


def versions_are_tested(subject: Subject) -> Iterator[Finding]:
    """A package replaced behind our back that fails late, or changes numbers."""
    for text, installed in subject.machine.requirements:
        requirement = Requirement(text)
        if not installed:
            yield Problem(f"{requirement.name} is not installed", text, "install milepost again")
        elif not requirement.specifier.contains(installed, prereleases=True):
            what = f"{requirement.name} {installed} is installed, not {requirement.specifier}"
            yield Problem(what, text, f'pip install "{text}"')


def trackers_are_installed(subject: Subject) -> Iterator[Finding]:
    """A run whose metrics never reach the service that somebody watches."""
    try:
        trackers_of(subject.topology.tracking)
    except ConfigError as error:
        yield from error.problems


def folder_is_ready(subject: Subject) -> Iterator[Finding]:
    """Two runs that write into one folder; a first checkpoint with no place to go."""
    folder = subject.run_folder
    if folder is not None and folder.exists() and not folder.is_dir():
        yield Problem("this is a file, and a run writes a folder", str(folder), "choose --out")
        return
    if not subject.machine.writable:
        yield Problem("no permission to write", str(folder or Path().absolute()), "choose --out")
    if folder is None:
        return
    path = str(folder.absolute())
    if path.encode(errors="replace") != os.fsencode(path):
        yield Problem("the path is not text in UTF-8", ascii(path), "choose another --out")
    used = folder.is_dir() and any(folder.iterdir())
    if used and not subject.resuming:
        holds_run = (folder / "topology.toml").is_file()
        go_on = f", or go on with --resume {folder}" if holds_run else ""
        remedy = f"choose another --out{go_on}"
        yield Problem("the run folder is not empty", str(folder), remedy)


def sockets_fit(subject: Subject) -> Iterator[Finding]:
    """A socket that cannot be bound, with an error of the system that names no reason."""
    folder = Path(subject.machine.temporary_folder) / f"{FOLDER_PREFIX}{'x' * RANDOM_CHARS}"
    topology = subject.topology
    kinds = (*topology.actors.__struct_fields__, *topology.custom)
    names = (name for kind in kinds for name in topology.names(kind))
    try:
        endpoint(folder, max(names, key=len, default=""))
    except ValueError as error:
        what, _, remedy = str(error).partition(": ")
        yield Problem(what, "TMPDIR", f"{remedy}, or TMPDIR")


def machine_has_room(subject: Subject) -> Iterator[Finding]:
    """A run that dies hours after its start, by a full disk, a full /dev/shm or the kernel."""
    topology, machine = subject.topology, subject.machine
    weights = weights_bytes(subject)
    checkpoints = (topology.run.checkpoints_keep + 1) * OPTIMIZER_FACTOR * weights
    room = _Room(machine, LOGS_BYTES + checkpoints)
    yield from room.disk(subject.run_folder)
    if topology.actors.publisher is not None:
        yield from room.shared_memory((2 + bool(topology.actors.evaluation_engine)) * weights)
    heavy = sum(len(topology.names(kind)) for kind in ("engine", "evaluation_engine", "trainer"))
    processes = _process_count(subject)
    wanted = processes * PROCESS_BYTES + heavy * (TORCH_BYTES + OPTIMIZER_FACTOR * weights)
    yield from room.memory(wanted, processes)
    files = FILES_EACH + 8 * processes
    if machine.open_files_max < files:
        what = f"a process may open {machine.open_files_max} files, and needs up to {files}"
        yield Problem(what, "ulimit -n", f"ulimit -n {files}")


@dataclass(frozen=True, slots=True)
class _Room:
    machine: Machine
    disk_bytes: int

    def disk(self, folder: Path | None) -> Iterator[Finding]:
        if self.machine.disk_free_bytes < self.disk_bytes:
            what = f"{_mib(self.machine.disk_free_bytes)} are free on disk, the run needs "
            where = str(folder or Path().absolute())
            remedy = "free some, choose another --out, or lower run.checkpoints_keep"
            yield Problem(what + _mib(self.disk_bytes), where, remedy)

    def shared_memory(self, wanted: int) -> Iterator[Finding]:
        free = self.machine.shared_memory_free_bytes
        if free is not None and free < wanted:
            what = (
                f"{_mib(free)} of shared memory are free, weight versions on their way need "
                f"{_mib(wanted)}"
            )
            remedy = "enlarge it, or raise system.bus.shared_memory_above_bytes to go without"
            yield Problem(what, str(SHARED_MEMORY), remedy)

    def memory(self, wanted: int, processes: int) -> Iterator[Finding]:
        free = self.machine.memory_available_bytes
        if free < wanted:
            what = f"{_mib(free)} of memory are available, {processes} processes need about "
            yield Problem(what + _mib(wanted), "memory", "use fewer replicas, or a smaller model")


def weights_bytes(subject: Subject) -> int:
    """Size of the starting checkpoint's weights; 0 while it does not exist yet."""
    model = subject.topology.model
    if model is None or not model.path:
        return 0
    files = model.folder.glob("*.safetensors")
    return sum(path.stat().st_size for path in files if path.is_file())


def _process_count(subject: Subject) -> int:
    built_in = subject.topology.actors.__struct_fields__
    return sum(len(subject.topology.names(kind)) for kind in (*built_in, *subject.topology.custom))


def _mib(size: int) -> str:
    return f"{size / MEBIBYTE:,.0f} MiB"
