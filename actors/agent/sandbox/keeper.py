"""Gives back what its parent leaves behind when it dies. A script, with the standard library alone.

`python -I -S keeper.py`, started by the process whose death it waits for. Lines of JSON on standard
input: `["take", NAME, COMMAND]` before something is made, `["release", NAME]` when it was given
back. At the end of the input the commands of what is left are run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

TRIES = 50
PAUSE_S = 0.1
"""What still dies in a folder may hold it for a moment."""
COMMAND_S = 30.0
"""One that hangs must not keep the others from being given back."""
UNABLE = 127
"""Exit code, as of a shell, of a command that cannot be started or does not end."""


def left(lines: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Name -> command of what was taken and not released, once the lines end; lines of no sense.

    A last line that was cut off, since its writer was killed, was not acted upon. One of no sense
    is our own mistake, and must not keep what other lines took from being given back.
    """
    taken: dict[str, list[str]] = {}
    senseless: list[str] = []
    for line in lines:
        if not line.endswith("\n"):
            break
        try:
            words = json.loads(line)
        except ValueError:
            words = None
        match words:
            case ["take", str(name), [*command]]:
                taken[name] = command
            case ["release", str(name)]:
                taken.pop(name, None)
            case _:
                senseless.append(line)
    return taken, senseless


def give_back(command: list[str]) -> int:
    """Run the command until it succeeds, or has failed too often; its last exit code."""
    code = 0
    for _ in range(TRIES):
        try:
            code = subprocess.run(command, check=False, timeout=COMMAND_S).returncode
        except (OSError, subprocess.TimeoutExpired):
            return UNABLE
        if code == 0:
            break
        time.sleep(PAUSE_S)
    return code


def main() -> int:
    """Wait for the parent's end, however it comes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    taken, senseless = left(sys.stdin)
    code = max((give_back(command) for command in taken.values()), default=0)
    for line in senseless:
        sys.stderr.write(f"no word of a lease: {line!r}\n")
    return UNABLE if senseless else code


if __name__ == "__main__":
    sys.exit(main())
