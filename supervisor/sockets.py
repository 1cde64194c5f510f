"""The private folder of a run's sockets, the address of every actor in it, and tcp's listeners."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from milepost.configs.spec import Address
from milepost.supervisor.book import SUPERVISOR
from milepost.supervisor.cleanup.reaper import FOLDER_PREFIX, MARK

PATH_CHARS_MAX: Final = 107
"""Longer paths do not fit into a socket address (`sun_path`) and fail with a confusing error."""
BACKLOG: Final = 1024
"""Connections that wait while a child is started again."""
ATTACH: Final = "attach"
"""The socket for clients that are no actors."""
STATISTICS: Final = "statistics"
"""The PUB socket: a snapshot a second for everybody who watches."""


def create_folder(run_id: str) -> Path:
    """A new folder (mode 0700, random name) under the user's runtime folder or /tmp.

    Raises:
        OSError: neither can be written.
    """
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=_base()))
    (folder / MARK).write_text(run_id, encoding="ascii")
    return folder


def remove_folder(folder: Path) -> None:
    """Remove it with all sockets in it."""
    shutil.rmtree(folder, ignore_errors=True)


def addresses(folder: Path, actors: Iterable[str]) -> dict[str, Address]:
    """Where the mailbox of each actor and of the supervisor is.

    Raises:
        ValueError: an actor's name makes the path too long for a socket.
    """
    return {name: Address(endpoint=endpoint(folder, name)) for name in (*actors, SUPERVISOR)}


def endpoint(folder: Path, name: str) -> str:
    """`ipc://` endpoint of one socket.

    Raises:
        ValueError: the path is too long for a socket.
    """
    path = str(folder / name)
    if len(os.fsencode(path)) > PATH_CHARS_MAX:
        raise ValueError(
            f"socket path {path} has {len(os.fsencode(path))} bytes, the system takes"
            f" {PATH_CHARS_MAX}: shorten the actor's name or set XDG_RUNTIME_DIR to a shorter path"
        )
    return f"ipc://{path}"


def family(host: str) -> socket.AddressFamily:
    """IPv6 or IPv4, as the address is."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def bound(host: str, port: int = 0, *, backlog: int = BACKLOG) -> socket.socket:
    """A listening tcp socket, not inherited unless asked for.

    Every port of a run that others have to find is bound like this, or tried like this before it:
    what a check finds free is free for the run.

    Args:
        host: an address of this machine; one of IPv6 that stands for all takes IPv4, too.
        port: 0 for any that is free.
        backlog: connections that wait to be accepted.

    Raises:
        OSError: the port is taken, or the host is none of this machine's; its text is the system's.
    """
    # `socket.create_server` keeps IPv4 off an address of IPv6, and rewords errors.
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(family(host), socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (TypeError, UnicodeError) as error:
            raise OSError(errno.EINVAL, "no machine can have that name") from error
        listener.listen(backlog)
        undo.pop_all()
    return listener


def listen(host: str) -> socket.socket:
    """A listening tcp socket at a free port of this host, as ZeroMQ takes it.

    Raises:
        OSError: it is no address of this machine.
    """
    listener = bound(host)
    listener.setblocking(False)  # noqa: FBT003 - ZeroMQ takes it as it is
    return listener


def tcp_endpoint(listener: socket.socket, host: str) -> str:
    """`tcp://HOST:PORT` of a listening socket."""
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"tcp://{shown}:{listener.getsockname()[1]}"


def _base() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime and Path(runtime).is_dir() and os.access(runtime, os.W_OK | os.X_OK)
    return runtime if usable and len(runtime) < PATH_CHARS_MAX // 2 else tempfile.gettempdir()
