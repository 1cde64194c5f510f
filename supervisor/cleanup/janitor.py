"""A small process that outlives a killed supervisor just long enough to clean up after it.

`python -P -m milepost.supervisor.cleanup.janitor RUN`, with a pipe as standard input whose other
end only the supervisor holds. At end of file the supervisor is gone, however it died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from milepost.supervisor.cleanup.processes import members_of
from milepost.supervisor.cleanup.reaper import reap, remove_all
from milepost.supervisor.cleanup.registry import Owned, owned_of, read_registry, registry_path

DYING_S: Final = 30.0
"""A large process takes a while to be taken apart."""
PATIENCE_S: Final = 1.0
"""Children die of the same end of file by themselves; their own way is the cleaner one."""
POLL_S: Final = 0.02


def wait_while(condition: Callable[[], bool], deadline_s: float) -> None:
    """Return when it does not hold any more, or after the deadline."""
    until_s = time.monotonic() + deadline_s
    while condition() and time.monotonic() < until_s:
        time.sleep(POLL_S)


def wait_for_the_end(path: Path) -> Owned:
    """What the run owns when its supervisor is gone.

    The registry is kept open, to be read also when somebody has removed the folder; each byte from
    the supervisor says that it was written anew.
    """
    registry = path.open("rb")
    try:
        run_id = owned_of(registry.read(), str(path)).run_id
        while os.read(0, 1):
            with contextlib.suppress(FileNotFoundError):  # the folder is gone: ours is the last
                renewed = path.open("rb")
                registry.close()
                registry = renewed
        if is_of(path, run_id):
            # The supervisor may have died between writing it anew and saying so.
            return read_registry(path.parent.parent)
        registry.seek(0)
        return owned_of(registry.read(), str(path))
    finally:
        registry.close()


def is_of(path: Path, run_id: str) -> bool:
    """Whether this is the registry of that run; its folder may be gone, or another run's."""
    try:
        return owned_of(path.read_bytes(), str(path)).run_id == run_id
    except FileNotFoundError:
        return False


def main(run_folder: Path) -> int:
    """Wait for the end of the supervisor, then reap unless it did so itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    path = registry_path(run_folder)
    owned = wait_for_the_end(path)
    if owned.closed:
        return 0
    # The pipe ends while the kernel still takes the supervisor apart; only then is it gone.
    wait_while(lambda: owned.in_use, DYING_S)
    wait_while(lambda: any(members_of(owned.run_id)), PATIENCE_S)
    reaped = reap(run_folder) if is_of(path, owned.run_id) else remove_all(owned)
    sys.stdout.write(f"{reaped}\n")
    return 1 if reaped.problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
