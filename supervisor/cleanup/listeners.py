"""Listening tcp sockets by an identity of their own, read from /proc.

A port number says nothing about who listens: after the run it may be somebody else's. The kernel's
number of the socket (its inode) does, and leads to every process that holds it, also to one that
the run's own processes passed it on to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from milepost.supervisor.cleanup.processes import PROC, Identity, identity_of

LISTENING: Final = "0A"
"""State of a socket in /proc/net/tcp (TCP_LISTEN)."""
STATE, INODE = 3, 9


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket.

    Attributes:
        actor: whose mailbox it is.
        endpoint: `tcp://HOST:PORT`.
        inode: the kernel's number of the socket.
    """

    actor: str
    endpoint: str
    inode: int


def listener_record(actor: str, endpoint: str, descriptor: int) -> dict[str, Any]:
    """A listening socket as JSON."""
    inode = os.fstat(descriptor).st_ino
    return {"kind": "listener", "actor": actor, "endpoint": endpoint, "inode": inode}


def listening(listeners: Collection[Listener]) -> list[Listener]:
    """Those of them that still take connections."""
    inodes = set(_listening_inodes()) if listeners else set()
    return [listener for listener in listeners if listener.inode in inodes]


def holders_of(listeners: Collection[Listener]) -> Iterator[Identity]:
    """Processes of ours, but not this one, that hold one of these sockets."""
    wanted = {f"socket:[{listener.inode}]" for listener in listeners}
    if not wanted:
        return
    mine, myself = os.getuid(), os.getpid()
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == myself:
            continue
        try:
            descriptors = list((folder / "fd").iterdir()) if folder.stat().st_uid == mine else []
        except OSError:
            continue
        if any(_what(each) in wanted for each in descriptors):
            found = identity_of(int(folder.name))
            if found is not None:
                yield found


def _what(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""  # closed meanwhile


def _listening_inodes() -> Iterator[int]:
    for name in ("tcp", "tcp6") if socket.has_ipv6 else ("tcp",):
        try:
            lines = (PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[STATE] == LISTENING:
                yield int(fields[INODE])
