"""What a pure core is told (events) and what it orders (effects).

A core is a plain class with one door, `handle(event, now_s) -> list[Effect]`: no await, no
clock, no socket, no torch. The shell (`milepost.actors.shell`) turns effects into I/O and I/O
into events; the simulator (`tests/sim`) does the same on a simulated network and clock. Effects
are carried out in the order given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from milepost.messages.shared import Message


@dataclass(frozen=True, slots=True)
class Request:
    """Handle of a question that waits for our answer: who asked, and under which message id."""

    source: str
    message_id: int


# ---- events: what a core is told ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message from `source`. With `request` set, the sender waits for a `Reply`."""

    source: str
    message: Message
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to our `Ask` with this key."""

    key: str
    source: str
    message: Message


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Our `Ask` got no answer, or our `Tell` was not taken: deadline, dead or unknown peer."""

    key: str
    to: str
    reason: str
    no_room: bool = False
    """It was never sent: too many messages wait for that receiver already. Nothing was lost."""


@dataclass(frozen=True, slots=True)
class Woken:
    """The time of a `Wake` has come."""

    key: str


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Long work started by an effect of the actor's own has ended."""

    key: str
    result: object
    error: str = ""
    """Set when it failed; then `result` is None."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The receiver has taken our `Tell` with this key, which was sent with `confirm`."""

    key: str


Event: TypeAlias = Received | Answered | Unanswered | Taken | Woken | WorkDone

# ---- effects: what a core orders ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send; arrives once. If it cannot be delivered by the deadline, `Unanswered(key)` comes."""

    to: str
    message: Message
    key: str = ""
    deadline_s: float | None = None
    """None: `system.timeouts.tell_s`."""
    confirm: bool = False
    """True: `Taken(key)` comes once the receiver has taken it. Needs a key."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send and wait for an answer: `Answered(key)` or `Unanswered(key)`, exactly one of them."""

    to: str
    message: Message
    key: str
    deadline_s: float | None = None
    """None: `system.timeouts.ask_s`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a question. Answering twice, or after the asker's deadline, changes nothing."""

    request: Request
    message: Message


@dataclass(frozen=True, slots=True)
class Wake:
    """`Woken(key)` at this time; the same key again moves the time."""

    key: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """Long work, off the event loop, by the actor's own hand; ends in `WorkDone(key)`.

    Actors subclass it with what the work needs.
    """

    key: str


@dataclass(frozen=True, slots=True)
class Fail:
    """This actor cannot go on. The process exits non-zero and the supervisor has the reason."""

    reason: str


Effect: TypeAlias = Tell | Ask | Reply | Wake | Work | Fail


class Core(Protocol):
    """The pure half of an actor."""

    def start(self, now_s: float) -> list[Effect]:
        """First effects, once every actor of the run is ready."""
        ...

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """The one door into the state. `now_s` is a monotonic time in seconds."""
        ...

    def validate(self) -> None:
        """Assert every invariant of the state."""
        ...

    def statistics(self) -> dict[str, object]:
        """Numbers for heartbeat and monitor."""
        ...

    def working_on(self) -> str:
        """What this actor waits for or does, in names, with since-when: the text of `why`."""
        ...
