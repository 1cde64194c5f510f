"""What the exit code of every command means."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Scripts may rely on these four."""

    DONE = 0
    """The work was done."""
    FAILED = 1
    """It was begun and not done; the first cause was named."""
    REFUSED = 2
    """Nothing was started: the command, the topology or this machine does not allow it."""
    UNREACHABLE = 3
    """No supervisor of that run answers."""
