"""The doorstep of a tcp mailbox: connections that have not proven a key of the run yet.

Each of them costs a descriptor and some KiB until it proves itself or its time is over, and
descriptors are what a process needs for its journal and its checkpoints as well. So there may be a
number of them and no more. When they are there, the kernel drops who knocks (a filter on the
listening socket lets no packet through); who means it knocks again by itself, and is heard as soon
as there is room. Whoever is in stays in: ZeroMQ itself could stop accepting only by closing the
listener, and with it everything that was accepted there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import struct
from typing import Final

import zmq

from milepost.messages.errors import AddressError

STANDING_MAX: Final = 4096
"""Connections without proof; each costs up to 10 KiB (measured)."""
DESCRIPTORS_SHARE: Final = 4
"""Of all descriptors that the process may have, one in so many may be such a connection."""
AGAIN_BELOW: Final = 0.5
"""Of the most: the door opens again when so many are left."""
_SOFT_BEFORE: Final[list[int]] = []
"""Descriptors that this process might open before it raised its own limit."""
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_DROP_ALL: Final = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of a classic packet filter: keep nothing (BPF_RET | BPF_K, 0)."""

AT_THE_DOOR: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
"""What `noticed` has to be told of."""


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system lets it; returns how many.

    A login shell's default of 1024 is a thing of `select`, which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        _SOFT_BEFORE.append(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def lower_descriptor_limit_of(pid: int) -> None:
    """Give a child the limit that this process had: others' code may use `select`.

    Beyond 1024 that writes past the end of its table. A child that has ended, or has set a lower
    limit itself, is left alone.
    """
    if not _SOFT_BEFORE:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft > _SOFT_BEFORE[0]:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_SOFT_BEFORE[0], hard))


def standing_max(descriptors_max: int) -> int:
    """How many connections without proof a process with so many descriptors takes."""
    if descriptors_max == resource.RLIM_INFINITY:
        return STANDING_MAX
    return max(1, min(STANDING_MAX, descriptors_max // DESCRIPTORS_SHARE))


class Doorstep:
    """Counts who stands there, and shuts and opens the door.

    Args:
        listen_fd: the listening socket; it stays the caller's.
        most: connections without proof, see `standing_max`.
        proof_s: seconds after which ZeroMQ closes a connection without proof.

    Raises:
        AddressError: the kernel takes no filter for this socket.
    """

    def __init__(self, listen_fd: int, most: int, proof_s: float) -> None:
        self._listener = socket.socket(fileno=os.dup(listen_fd))
        self._most = most
        self._proof_s = proof_s
        self._standing: dict[int, float] = {}
        """Descriptor -> since when, in the loop's time; the oldest first."""
        self._shut: asyncio.TimerHandle | None = None
        self.num_accepted = 0
        self.num_proven = 0
        self.num_shut = 0
        try:
            # Both at once: a predecessor that died behind a shut door has left it so.
            self._drop_all()
            self._drop_none()
        except OSError as error:
            self._listener.close()
            raise AddressError(
                f"the connections of a tcp mailbox cannot be bounded, this kernel refuses a filter"
                f' on its socket ({error}): set $.system.transport = "ipc"'
            ) from error

    @property
    def num_standing(self) -> int:
        """Connections without proof."""
        return len(self._standing)

    @property
    def is_shut(self) -> bool:
        """Whether nobody is let in now."""
        return self._shut is not None

    def noticed(self, event: int, descriptor: int) -> None:
        """Something happened to a connection (see `AT_THE_DOOR`).

        Args:
            event: what.
            descriptor: of the connection. ZeroMQ does not tell that of one that has proven itself:
                the oldest leaves in its place, and whoever stays in place of another one leaves
                when it would have had to prove itself long ago.
        """
        if event == zmq.EVENT_ACCEPTED:
            self.num_accepted += 1
            self._stands(descriptor)
            if len(self._standing) >= self._most and not self.is_shut:
                self._close_door()
            return
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.num_proven += 1
            descriptor = next(iter(self._standing), -1)
        self._standing.pop(descriptor, None)
        if len(self._standing) <= self._most * AGAIN_BELOW:
            self._open_door()

    def _stands(self, descriptor: int) -> None:
        now_s = asyncio.get_running_loop().time()
        while self._standing and next(iter(self._standing.values())) < now_s - 2 * self._proof_s:
            del self._standing[next(iter(self._standing))]
        self._standing.pop(descriptor, None)
        self._standing[descriptor] = now_s

    def close(self) -> None:
        """Leave the door open for whoever listens there next."""
        self._open_door()
        self._listener.close()

    def _close_door(self) -> None:
        self.num_shut += 1
        self._drop_all()
        # Whoever stands there now is gone by then, whatever we are told or not told of it: a door
        # is never shut for good.
        loop = asyncio.get_running_loop()
        self._shut = loop.call_later(2 * self._proof_s, self._all_gone)

    def _all_gone(self) -> None:
        self._standing.clear()
        self._open_door()

    def _open_door(self) -> None:
        if self._shut is not None:
            self._shut.cancel()
            self._shut = None
            self._drop_none()

    def _drop_all(self) -> None:
        code = ctypes.create_string_buffer(_DROP_ALL)
        program = struct.pack("HL", 1, ctypes.addressof(code))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _drop_none(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # there is none
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
