"""ipc addresses: one owner each, in a folder nobody else can enter.

ZeroMQ lets a second process bind the same path and steal the first one's messages, and a path
that is too long fails late. So an owner holds a lock file beside the socket as long as it lives.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from milepost.messages.errors import AddressError

IPC_PATH_BYTES_MAX: Final = 107
"""What the kernel's socket address holds."""


def ipc_path(endpoint: str) -> str:
    """The path of an `ipc://` endpoint, or an empty string for any other."""
    return endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else ""


@contextmanager
def lock_ipc(path: str) -> Iterator[None]:
    """Own this ipc path; on leaving, socket file and lock file are gone.

    Raises:
        AddressError: too long, the folder is open to others, or another process owns the path.
    """
    length = len(os.fsencode(path))
    if length > IPC_PATH_BYTES_MAX:
        raise AddressError(
            f"ipc path of {length} bytes, the kernel allows {IPC_PATH_BYTES_MAX}: {path}; "
            "choose a shorter folder (TMPDIR)"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise AddressError(f"no folder {folder} for the ipc socket {path}")
    if folder.stat().st_mode & 0o077:
        raise AddressError(f"{folder} is open to other users, make it mode 0700")
    lock = f"{path}.lock"
    descriptor = _lock(lock, path)
    try:
        yield
    finally:
        Path(path).unlink(missing_ok=True)
        Path(lock).unlink(missing_ok=True)
        os.close(descriptor)


def _lock(lock: str, path: str) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise AddressError(f"another process owns {path}") from error
        try:
            same = Path(lock).stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            same = False
        if same:
            return descriptor
        os.close(descriptor)
