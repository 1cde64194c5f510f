"""A small process that outlives a killed supervisor just long enough to clean up after it.

`python -P -m milepost.supervisor.cleanup.janitor RUN`, with a pipe as standard input whose other
end only the supervisor holds. At end of file the supervisor is gone, however it died.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from milepost.supervisor.cleanup.processes import members_of
from milepost.supervisor.cleanup.reaper import reap
from milepost.supervisor.cleanup.registry import read_registry

PATIENCE_S: Final = 1.0
"""Children die of the same end of file by themselves; their own way is the cleaner one."""
POLL_S: Final = 0.02


def main(run_folder: Path) -> int:
    """Wait for the end of the supervisor, then reap unless it did so itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    if not run_folder.exists():
        return 0
    owned = read_registry(run_folder)
    if owned.closed:
        return 0
    until_s = time.monotonic() + PATIENCE_S
    while any(members_of(owned.run_id)) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    reaped = reap(run_folder)
    sys.stdout.write(f"{reaped}\n")
    return 1 if reaped.problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
