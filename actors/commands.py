"""What processes that are commands, and load what a launching one must not, have in common."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable


def end_at_ctrl_c() -> None:
    """Without a word: it reaches the process that launched this one, too, which says so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def say(lines: Iterable[str]) -> None:
    """Print them, as far as somebody reads and the terminal has letters for them.

    What acts on a terminal, as in a damaged name, is written by its number; ends of lines and tabs
    stay.
    """
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{_plain(line)}\n" for line in lines)
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it closes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(line: str) -> str:
    if line.isprintable():
        return line
    kept = "\n\t"
    return "".join(
        each if each.isprintable() or each in kept else f"<U+{ord(each):04X}>" for each in line
    )
