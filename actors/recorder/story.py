"""What was recorded of the thing that went wrong: the last lines about it, over all actors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from milepost.actors.recorder.lines import Line, ids_of, words_of
from milepost.actors.recorder.reading import Recording, read_recordings
from milepost.actors.recorder.tracing import Moment, group_of, in_order, moments
from milepost.messages.buffer import GroupsRefused
from milepost.messages.shared import Message
from milepost.messages.supervisor import EventReported, GuardTripped

LINES_MAX: Final = 12
"""With the error below, the end of a log as the supervisor keeps it."""
CHARACTERS_MAX: Final = 220
NAMES_MAX: Final = 4
"""An event about more than that is about none of them."""
MAY_BE_NEWS: Final = frozenset({GuardTripped, GroupsRefused, EventReported})
"""Types of messages that may be worth a pin."""
BAD_NEWS: Final = frozenset({"refused_at_door", "canary"})
"""Kinds of events that say that a contract does not hold."""
_NAME: Final = re.compile(r"\b[a-z]\w*\d\w*(?:\.\d+)?\b")


def anomaly_in(message: Message) -> str:
    """Why what is told there is worth a pin; empty when it is not."""
    match message:
        case GuardTripped():
            return f"guard {message.guard}: {message.reason}"
        case GroupsRefused():
            pairs = zip(message.group_ids, message.reasons, strict=False)
            return "refused at the door: " + "; ".join(f"{one}: {why}" for one, why in pairs)
        case EventReported(kind=kind, text=text) if kind in BAD_NEWS:
            return f"{kind}: {text}"
        case _:
            return ""


def story(folder: Path, run_id: str, actor: str, reason: str) -> str:
    """The last lines about the names in `reason`, or else about what `actor` did last.

    Args:
        folder: `RUN/recorder`.
        run_id: of this life of the run.
        actor: who failed.
        reason: what it said.

    Returns:
        Text of several lines; what cannot be read is said in it, since a failure is told anyway.
    """
    unreadable: dict[Path, str] = {}
    every = read_recordings(folder, unreadable=unreadable)
    recordings = [each for each in every if each.run_id == run_id]
    own = [each for each in recordings if each.actor == actor]
    lines = [line for each in own for line in each.lines]
    names = concerned(lines, reason)
    if names:
        found = _about(recordings, names)
        head = f"recorded about {', '.join(names)}"
    else:
        found = [Moment(each, line) for each in own for line in each.lines]
        head = f"last lines of {actor}"
    shown = found[-LINES_MAX:]
    texts = [f"  {each.recording.name} {words_of(each.line)}"[:CHARACTERS_MAX] for each in shown]
    missing = [f"a recording cannot be read: {each}" for each in unreadable.values()]
    return "\n".join([*missing, f"{head} ({len(shown)} of {len(found)} lines):", *texts, ""])


def concerned(lines: Sequence[Line], reason: str) -> list[str]:
    """Trajectories and groups that a failure is about, at most `NAMES_MAX`.

    Those that the reason names and the actor knows; else those of the actor's last line.
    """
    known = {name for line in lines for name in ids_of(line)}
    known |= {group_of(name) for name in known}
    named = [name for name in dict.fromkeys(_NAME.findall(reason)) if name in known]
    if not named and lines:
        named = list(dict.fromkeys(ids_of(lines[-1])))
    return named if len(named) <= NAMES_MAX else []


def _about(recordings: Iterable[Recording], names: Iterable[str]) -> list[Moment]:
    every = list(recordings)
    found = {
        (each.recording.name, each.line.number): each
        for name in names
        for each in moments(every, name)
    }
    return in_order(found.values())
