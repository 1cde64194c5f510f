"""A child never outlives its supervisor, however that one dies.

Two independent ties: the kernel's parent-death signal, and a pipe whose other end only the
supervisor holds (end of file means it is gone, also when the signal was lost to a re-parent).
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Final

DEATH_FD_VARIABLE: Final = "MILEPOST_DEATH_FD"
_PR_SET_PDEATHSIG: Final = 1
EXIT_ORPHANED: Final = 70


def tie_to_parent() -> None:
    """Install both ties; call it first thing in a child process.

    Raises:
        OSError: the kernel refused the parent-death signal.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    descriptor = os.environ.pop(DEATH_FD_VARIABLE, "")
    if descriptor:
        watcher = threading.Thread(
            target=_exit_at_end_of_file, args=(int(descriptor),), name="lifeline", daemon=True
        )
        watcher.start()


def _exit_at_end_of_file(descriptor: int) -> None:
    # A thread, so that a blocked event loop cannot keep an orphan alive.
    while os.read(descriptor, 64):
        pass
    os._exit(EXIT_ORPHANED)
