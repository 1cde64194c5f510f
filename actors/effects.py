"""What a pure core is told (events) and what it orders (effects).

A core is a plain class with one door, `handle(event, now_s) -> list[Effect]`: no await, no
clock, no socket, no torch. The shell (`milepost.actors.shell`) turns effects into I/O and I/O
into events; the simulator (`tests/sim`) does the same on a simulated network and clock. Effects
are carried out in the order given.

Both are structs: one is made for every event and every message, and a frozen dataclass takes ten
times as long to make. What an actor orders of itself (`Work`) is rarer, and has fields of any kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from msgspec import Struct

from milepost.messages.shared import Message


class Request(Struct, frozen=True):
    """Handle of a question that waits for our answer: who asked, and under which message id."""

    source: str
    message_id: int


# ---- events: what a core is told ---------------------------------------------------------


class Received(Struct, frozen=True):
    """A message from `source`. With `request` set, the sender waits for a `Reply`."""

    source: str
    message: Message
    request: Request | None = None


class Answered(Struct, frozen=True):
    """The answer to our `Ask` with this key."""

    key: str
    source: str
    message: Message


class Unanswered(Struct, frozen=True):
    """Our `Ask` got no answer, or our `Tell` was not taken: deadline, dead or unknown peer."""

    key: str
    to: str
    reason: str
    no_room: bool = False
    """It was never sent: too many messages wait for that receiver already. Nothing was lost."""


class Woken(Struct, frozen=True):
    """The time of a `Wake` has come."""

    key: str


class WorkDone(Struct, frozen=True):
    """Long work started by an effect of the actor's own has ended."""

    key: str
    result: object
    error: str = ""
    """Set when it failed; then `result` is None."""


class Taken(Struct, frozen=True):
    """The receiver has taken our `Tell` with this key, which was sent with `confirm`."""

    key: str


Event: TypeAlias = Received | Answered | Unanswered | Taken | Woken | WorkDone

# ---- effects: what a core orders ---------------------------------------------------------


class Tell(Struct, frozen=True):
    """Send; arrives once. If it cannot be delivered by the deadline, `Unanswered(key)` comes."""

    to: str
    message: Message
    key: str = ""
    deadline_s: float | None = None
    """None: `system.timeouts.tell_s`."""
    confirm: bool = False
    """True: `Taken(key)` comes once the receiver has taken it. Needs a key."""


class Ask(Struct, frozen=True):
    """Send and wait for an answer: `Answered(key)` or `Unanswered(key)`, exactly one of them."""

    to: str
    message: Message
    key: str
    deadline_s: float | None = None
    """None: `system.timeouts.ask_s`."""


class Reply(Struct, frozen=True):
    """Answer a question. Answering twice, or after the asker's deadline, changes nothing."""

    request: Request
    message: Message


class Wake(Struct, frozen=True):
    """`Woken(key)` at this time; the same key again moves the time."""

    key: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """Long work, off the event loop, by the actor's own hand; ends in `WorkDone(key)`.

    Actors subclass it with what the work needs.
    """

    key: str


class Fail(Struct, frozen=True):
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
