"""RUN/.milepost/registry.jsonl: everything a run owns, before anyone could lose track of it.

One JSON object a line, appended, on disk (fsync) before `append` returns. A line cut off by a crash
is the last one and is ignored. When it has grown to several times what still counts, it is written
anew beside itself and renamed (see `compaction`). Kinds:

    run         run_id, supervisor {pid, started, boot}
    process     actor, incarnation, pid, started, boot
    folder      path (of sockets)
    segments    prefix (of files in /dev/shm)
    listener    actor, endpoint, inode: a listening tcp socket, that actor's
    command     name, actor, argv, lease_until (seconds since 1970; none: the actor's life): gives
                back something outside (a sandbox); run at the end of its lease and at reaping.
                Said again with a later end when the lease is renewed
    released    name: the command is not needed any more
    closed      nothing is left
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from milepost.supervisor.cleanup.listeners import Listener
from milepost.supervisor.cleanup.processes import Identity

PRIVATE: Final = ".milepost"
"""Folder inside the run folder with what is not for people."""


@dataclass(slots=True)
class Owned:
    """What a registry says the run owns.

    Attributes:
        run_id: id of the run, empty when not even that was written.
        supervisor: the process that answers for the run.
        processes: every process ever started for it.
        folders: socket folders.
        prefixes: of the names of its shared memory.
        listeners: its listening tcp sockets.
        commands: name -> argv that releases it.
        leases: name -> when its lease ends, in seconds since 1970.
        closed: True once everything was taken away.
    """

    run_id: str = ""
    supervisor: Identity | None = None
    processes: list[Identity] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    commands: dict[str, list[str]] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)
    closed: bool = False

    @property
    def in_use(self) -> bool:
        """Whether the run's supervisor is alive."""
        return not self.closed and self.supervisor is not None and self.supervisor.alive


class Registry:
    """Appends to the registry of one run; safe for several writers, blocking, thread-safe."""

    def __init__(self, run_folder: Path) -> None:
        self.path = registry_path(run_folder)

    def mend(self) -> None:
        """Cut off what a crash left of a last line, before a next life appends to it.

        Raises:
            OSError: the disk did not take it.
        """
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records and wait until they are on disk.

        Raises:
            OSError: the disk did not take them.
        """
        text = "".join(f"{json.dumps({**record, 'at': time.time()})}\n" for record in records)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            append_whole(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append_whole(descriptor: int, data: bytes) -> None:
    """Append all of it, or (when nobody else has appended meanwhile) nothing.

    Raises:
        OSError: the disk did not take it.
    """
    size = os.fstat(descriptor).st_size
    written = os.write(descriptor, data)
    if written < len(data):
        if os.fstat(descriptor).st_size == size + written:
            os.ftruncate(descriptor, size)
        text = f"{os.strerror(errno.ENOSPC)}: {written} of {len(data)} bytes were taken"
        raise OSError(errno.ENOSPC, text)


def registry_path(run_folder: Path) -> Path:
    """Where the registry of a run lies."""
    return run_folder / PRIVATE / "registry.jsonl"


def identity_record(identity: Identity) -> dict[str, Any]:
    """An identity as JSON."""
    return {"pid": identity.pid, "started": identity.started, "boot": identity.boot}


def read_registry(run_folder: Path) -> Owned:
    """What the run owns, after its last record. A resumed run goes on in the same file.

    Raises:
        FileNotFoundError: the folder is no run folder.
        ValueError: a line that is not the last one cannot be read.
    """
    path = registry_path(run_folder)
    return owned_of(path.read_bytes(), str(path))


def owned_of(text: bytes, name: str) -> Owned:
    """The same from the bytes of a registry called `name`.

    Raises:
        ValueError: a line that is not the last one cannot be read.
    """
    owned = Owned()
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            note(owned, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{name}:{number}: {error}") from error
    return owned


def note(owned: Owned, record: Mapping[str, Any]) -> None:
    """What is owned after this record.

    Raises:
        ValueError, KeyError, TypeError: it is no record.
    """
    match record["kind"]:
        case "run":
            owned.run_id = record["run_id"]
            owned.supervisor = _identity(record["supervisor"])
            owned.processes.clear()
            owned.closed = False
        case "process":
            owned.processes.append(_identity(record))
        case "folder":
            owned.folders.append(Path(record["path"]))
        case "segments":
            owned.prefixes.append(record["prefix"])
        case "command":
            owned.commands[record["name"]] = list(record["argv"])
            owned.leases.pop(record["name"], None)
            if "lease_until" in record:
                owned.leases[record["name"]] = float(record["lease_until"])
        case "released":
            owned.commands.pop(record["name"], None)
            owned.leases.pop(record["name"], None)
        case "listener":
            actor, endpoint, inode = record["actor"], record["endpoint"], record["inode"]
            owned.listeners.append(Listener(str(actor), str(endpoint), int(inode)))
        case "closed":
            owned.closed = True
            owned.folders.clear()
            owned.prefixes.clear()
            owned.listeners.clear()
            owned.commands.clear()
            owned.leases.clear()
        case kind:
            raise ValueError(f"unknown kind of record {kind!r}")


def _identity(record: Mapping[str, Any]) -> Identity:
    return Identity(int(record["pid"]), int(record["started"]), str(record["boot"]))
