"""How the actors of one host share its cores.

Linux lets a thread that a message wakes interrupt the one that computes. With fewer cores than
actors that have something to do, each message then costs two switches, and its receiver finds this
one message, answers it, and sleeps again. Under SCHED_BATCH (sched(7)) who was woken waits for a
core that is free, or until a time slice ends (some milliseconds): messages come in bunches, which
is less work. Where cores are idle, nothing is different. Measured in docs/performance.md.
"""

from __future__ import annotations

import os
from typing import Final

from milepost.configs.system import CoreSharing

POLICIES: Final[dict[CoreSharing, int]] = {"batch": os.SCHED_BATCH, "normal": os.SCHED_OTHER}


def share(how: CoreSharing) -> str:
    """Have the calling thread, and all threads and processes it starts from now on, scheduled so.

    Returns:
        Why the system refuses it, in which case nothing has changed; else nothing.
    """
    try:
        os.sched_setscheduler(0, POLICIES[how], os.sched_param(0))
    except OSError as error:
        return f"system.cores = {how!r} cannot be had here: {error}"
    return ""
