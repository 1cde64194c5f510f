"""Who was first: the words for a death, and telling a victim from a culprit."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from milepost.supervisor.events import ChildExited
from milepost.supervisor.outcome import Cause
from milepost.supervisor.states import Child, Running

SILENCE_S_MIN: Final = 3.0
"""Three missed heartbeats: less is noise."""
SIMULTANEOUS_S: Final = 0.5
"""Deaths this close together are seen in an order that means nothing."""
FIRST_LINE_CHARS_MAX: Final = 300
FULL: Final = "disk full: "


def words_of_exit(exited: ChildExited) -> str:
    """`was killed by SIGKILL` or `exited with code 3`."""
    if exited.code is None:
        return f"was killed by {exited.signal}" if exited.signal else "could not be started"
    if exited.code == 0:
        return "exited with code 0, although nobody had told it to stop"
    return f"exited with code {exited.code}"


def cause_of(child: Child, exited: ChildExited, reason: str) -> Cause:
    """The cause that this death would be.

    Args:
        child: who died.
        exited: how its process ended.
        reason: why, when the supervisor or the child itself knows; else empty.
    """
    text = f"{child.name} {words_of_exit(exited)}"
    if why := reason or child.last_words or _last_line(exited.log_tail):
        text = f"{text}: {why}"
    return Cause(child.name, text, exited.code, exited.signal, exited.log_tail)


def named(cause: Cause) -> Cause:
    """The cause, with a full disk said first: whoever meets it first is only its victim."""
    return with_full_disk(cause) if tells_of_full_disk(cause) else cause


def tells_of_full_disk(cause: Cause) -> bool:
    """Whether its words or its log are those of the system for a full disk."""
    return any(os.strerror(errno.ENOSPC) in line for line in (cause.text, *cause.log_tail))


def with_full_disk(cause: Cause) -> Cause:
    """The cause, with a full disk said first, once."""
    text = cause.text.removeprefix(FULL)
    return replace(cause, text=f"{FULL}{text}")


def earlier_silence(
    dead: Child, cause: Cause, children: Iterable[Child], deadline_s: float, now_s: float
) -> Cause:
    """Blame a running child that fell silent before `dead` died, if there is one.

    An actor whose peer hangs fails by its own deadline and so is often the first to die. The
    heartbeats say who stopped first.
    """
    threshold_s = max(SILENCE_S_MIN, deadline_s / 3)
    silent = [
        child
        for child in children
        if child is not dead
        and isinstance(child.state, Running)
        and now_s - child.heard_s > threshold_s
    ]
    if not silent:
        return cause
    first = min(silent, key=lambda child: child.heard_s)
    silence_s = now_s - first.heard_s
    text = f"{first.name} has been silent for {silence_s:.1f} s; then {cause.text}"
    return Cause(first.name, text, cause.exit_code, cause.signal, cause.log_tail)


def better_cause(old: Cause, old_s: float, new: Cause, new_s: float) -> bool:
    """Whether `new`, seen later, explains `old`.

    A process killed by a signal is nobody's victim; one that exits by itself right before may
    have noticed it first.
    """
    return new_s - old_s <= SIMULTANEOUS_S and bool(new.signal) and not old.signal


def _last_line(log_tail: tuple[str, ...]) -> str:
    lines = [line.strip() for line in log_tail if line.strip()]
    return lines[-1][:FIRST_LINE_CHARS_MAX] if lines else ""
