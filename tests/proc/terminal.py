"""A real terminal in tmux: what a person sees, read from its screen, and keys as they are typed."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

DEADLINE_S: Final = 60.0
LOOK_S: Final = 1.0
"""The screen is looked at after each piece of output, and at least this often."""


class Terminal:
    """One window of a tmux server of its own; `with Terminal(...) as terminal`.

    Args:
        command: what runs in it; afterwards the line `left with CODE` stands there.
        size: columns and lines.
        environment: of the command.
    """

    def __init__(
        self, command: Sequence[str], size: tuple[int, int], environment: dict[str, str]
    ) -> None:
        self._command = command
        self._size = size
        # Whoever runs the tests may have told a size; this terminal has its own.
        hidden = ("COLUMNS", "LINES")
        self._environment = {key: x for key, x in environment.items() if key not in hidden}
        # Socket paths are short, temporary folders of tests are not.
        self._folder = Path(tempfile.mkdtemp(prefix="mt", dir="/tmp"))
        self._output = -1

    def __enter__(self) -> Self:
        """Start the command."""
        width, height = self._size
        pipe = self._folder / "output"
        os.mkfifo(pipe)
        # Opened for both ends, so that it neither blocks now nor ends when the writer does.
        self._output = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        line = f"read go; {shlex.join(self._command)}; echo left with $?; exec cat"
        size = ("-x", str(width), "-y", str(height))
        self.tmux("new-session", "-d", *size, line, environment=self._environment)
        self.tmux("pipe-pane", "-o", f"exec cat > {shlex.quote(str(pipe))}")
        self.type("go", "Enter")
        return self

    def __exit__(self, *_: object) -> None:
        """Kill whatever still runs in it."""
        self.tmux("kill-server")
        os.close(self._output)
        shutil.rmtree(self._folder)

    def tmux(self, *words: str, environment: dict[str, str] | None = None) -> str:
        """One command of tmux."""
        server = ["tmux", "-f", "/dev/null", "-S", str(self._folder / "tmux")]
        done = subprocess.run(
            [*server, *words],
            env={**(environment or self._environment), "TERM": "xterm-256color"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def type(self, *keys: str) -> None:
        """Press keys, as tmux calls them."""
        self.tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        """What stands on it."""
        return self.tmux("capture-pane", "-p")

    def until(self, *texts: str, deadline_s: float = DEADLINE_S) -> str:
        """Wait until all of these stand on the screen at once; returns it."""
        end_s = time.monotonic() + deadline_s
        while True:
            shown = self.screen()
            missing = [text for text in texts if text not in shown]
            if not missing:
                return shown
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"{missing} did not come within {deadline_s} s:\n{shown}"
            if select.select([self._output], [], [], min(LOOK_S, left_s))[0]:
                os.read(self._output, 1 << 20)
