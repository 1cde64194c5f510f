"""Fences itself in, then becomes the command. Run as a script, with the standard library alone.

`python -I -S inside.py SPEC`, SPEC being JSON. What could not be fenced is written, as a JSON list
of words, to the descriptor `status_fd` before the command begins.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MS_SAFE = 2 | 4 | 8
"""No set-user-id, no devices, no programs."""
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
OPEN_FILES_MAX = 256
EXIT_NOT_STARTED = 127

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise what the kernel said.

    Raises:
        OSError: `result` is not 0.
    """
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def die_with_parent() -> None:
    """The kernel kills us when whoever started us is gone."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def enter_namespaces(*, network: bool) -> None:
    """A world of our own: users, processes, mounts, and unless `network`, no network at all.

    Raises:
        OSError: the system does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC
    check(libc.unshare(flags | (0 if network else CLONE_NEWNET)), "unshare")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {user} 1")
    write("/proc/self/gid_map", f"{group} {group} 1")


def write(path: str, text: str) -> None:
    """Into a file of the kernel."""
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - one import less at each start
        file.write(text)


def make_read_only(folder: str) -> None:
    """Everything but `folder` can be read only.

    Raises:
        OSError: the system does not allow it.
    """
    target = folder.encode()
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount private")
    check(libc.mount(target, target, None, MS_BIND | MS_REC, None), "mount bind")
    set_attributes(b"/", AT_RECURSIVE, MOUNT_ATTR_RDONLY, 0)
    set_attributes(target, 0, 0, MOUNT_ATTR_RDONLY)
    os.chdir(folder)


def set_attributes(path: bytes, flags: int, on: int, off: int) -> None:
    """mount_setattr(2).

    Raises:
        OSError: the system does not allow it.
    """
    attributes = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    size = ctypes.sizeof(attributes)
    done = libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, attributes, size)
    check(done, "mount_setattr")


def hide_processes() -> None:
    """/proc shows our own processes only, and with them no secrets of others.

    Raises:
        OSError: the system does not allow it.
    """
    check(libc.mount(b"proc", b"/proc", b"proc", MS_SAFE, None), "mount /proc")


def limit(spec: dict[str, int]) -> None:
    """Bounds that the kernel keeps, for each process."""
    bounds = {
        resource.RLIMIT_AS: spec["memory_bytes_max"],
        resource.RLIMIT_CPU: spec["cpu_s_max"],
        resource.RLIMIT_FSIZE: spec["file_bytes_max"],
        resource.RLIMIT_NPROC: spec["processes_max"],
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_CORE: 0,
    }
    for which, bound in bounds.items():
        resource.setrlimit(which, (bound, bound))


def tried(what: str, fence: Callable[[], None]) -> Iterator[str]:
    """Nothing, or why this fence does not stand."""
    try:
        fence()
    except OSError as error:
        yield f"{what} ({error.strerror or error})"


def main() -> int:
    """Fence in, run, and say how it ended: its exit code, or 128 and the signal."""
    spec = json.loads(sys.argv[1])
    die_with_parent()
    weak = list(tried("no namespaces", lambda: enter_namespaces(network=spec["network"])))
    if not weak:
        weak += tried("files can be written", lambda: make_read_only(spec["folder"]))
    child = os.fork()
    if child == 0:
        become(spec, weak)
    os.close(spec["status_fd"])
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def become(spec: dict[str, object], weak: list[str]) -> None:
    """The first process of the new world; when it ends, the kernel ends all others in it."""
    status = int(str(spec["status_fd"]))
    try:
        die_with_parent()
        if not weak:
            weak += tried("other processes can be seen", hide_processes)
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        limit(spec["limits"])  # type: ignore[arg-type]
        os.write(status, json.dumps(weak).encode())
        os.close(status)
        command: list[str] = spec["command"]  # type: ignore[assignment]
        environment: dict[str, str] = spec["environment"]  # type: ignore[assignment]
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the command could not be started: {error}\n")
    finally:
        os._exit(EXIT_NOT_STARTED)


if __name__ == "__main__":
    sys.exit(main())
