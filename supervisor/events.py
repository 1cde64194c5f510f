"""What the supervisor's core is told (events) and what it orders (effects)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from milepost.actors.effects import Request
from milepost.messages.shared import Message
from milepost.messages.supervisor import (
    Drain,
    EventReported,
    PortOpened,
    ResourceReleased,
    ResourceTaken,
    StepRecorded,
)
from milepost.supervisor.outcome import Verdict

# ---- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildStarted:
    """The process of this incarnation exists."""

    actor: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class ChildNotStarted:
    """The operating system refused to start it."""

    actor: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChildExited:
    """The process has ended: with an exit code, or by a signal (then `code` is None)."""

    actor: str
    incarnation: int
    code: int | None
    signal: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of an actor. With `request` set, it waits for an answer."""

    source: str
    incarnation: int
    message: Message
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A `TellChild` was not taken by its deadline."""

    actor: str
    incarnation: int
    message: Message
    reason: str


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """A child answered `Drain`, or (with `error`) did not."""

    actor: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Somebody wants the run to end: a person's Ctrl-C, SIGTERM, or `milepost stop`."""

    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """SIGINT or SIGTERM reached the supervisor: the first drains, the second stops at once."""

    name: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The supervisor itself cannot go on (disk full, bus broken)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = (
    ChildStarted
    | ChildNotStarted
    | ChildExited
    | Said
    | NotTaken
    | DrainEnded
    | StopRequested
    | Interrupted
    | Broken
    | Tick
)

# ---- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start the process of this incarnation; `ChildStarted` or `ChildNotStarted` follows."""

    actor: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class SignalChild:
    """Send it to the child's whole process group (KILL) or to the child (TERM)."""

    actor: str
    signal: Literal["TERM", "KILL"]


@dataclass(frozen=True, slots=True)
class TellChild:
    """Send over the bus; `NotTaken` comes when it is not taken in time."""

    actor: str
    message: Message


@dataclass(frozen=True, slots=True)
class DrainChild:
    """Ask it to drain; exactly one `DrainEnded` follows."""

    actor: str
    message: Drain


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a question."""

    request: Request
    message: Message


@dataclass(frozen=True, slots=True)
class Record:
    """Write a line of events.jsonl or metrics.jsonl, and show it."""

    message: EventReported | StepRecorded


@dataclass(frozen=True, slots=True)
class Keep:
    """Write down (or off) something that an actor holds by itself."""

    message: ResourceTaken | ResourceReleased | PortOpened


@dataclass(frozen=True, slots=True)
class Finish:
    """Every child has ended: clean up and report."""

    verdict: Verdict


Effect: TypeAlias = (
    StartChild | SignalChild | TellChild | DrainChild | Answer | Record | Keep | Finish
)
