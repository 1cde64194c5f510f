"""What an actor tells the supervisor, and what the supervisor orders."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct

from milepost.messages.shared import Message, NonNegative

NOT_FINITE: Final = "not_finite"
"""The one guard that trips over the weights themselves: they are of no step, and must not be saved.
After every other one the version reached is whole."""


class Hello(Message, kw_only=True):
    """First word of a child: who it is and what it speaks. Answered with `Welcome` or `Refused`."""

    actor: str
    incarnation: NonNegative
    pid: NonNegative
    schema: str
    """Fingerprint of every message type; two commits do not mix."""


class Welcome(Message, kw_only=True):
    """The supervisor knows this child."""


class Refused(Message, kw_only=True):
    """The supervisor will not have this child, or the request cannot be served."""

    reason: str


class Ready(Message, kw_only=True):
    """The child can work."""

    actor: str
    facts: dict[str, Any] = {}
    """What it found out while starting (model, vocabulary, parameters, versions)."""


class Begin(Message, kw_only=True):
    """Every actor of the run is ready: start working."""


class Heartbeat(Message, kw_only=True):
    """Once a second, from the loop that does the work."""

    actor: str
    state: str
    working_on: str
    """What the worker does or waits for, in words, with since-when and deadline inside."""
    progress: NonNegative
    """Grows whenever the worker got something done."""
    statistics: dict[str, Any]
    """Mailbox, links, loop delay, memory, and the actor's own numbers."""


class StepRecorded(Message, kw_only=True):
    """Figures of one step; all that is said of a step becomes its one object in metrics.jsonl."""

    source: str
    step: NonNegative
    metrics: dict[str, float]


class EventReported(Message, kw_only=True):
    """Something a person should be able to read later (an evaluation, a retry, a refusal)."""

    source: str
    kind: str
    text: str
    values: dict[str, Any] = {}


class WorkFinished(Message, kw_only=True):
    """This actor has done all that the run asked of it. The run ends when all such have."""

    actor: str
    summary: dict[str, Any] = {}
    problem: str = ""
    """Part of the work that could not be done: the run ends, and has failed for this reason."""


class GuardTripped(Message, kw_only=True):
    """The run must stop: training goes wrong in a way that will not heal."""

    actor: str
    guard: str
    """Its name. After `not_finite` nothing is saved; after any other the version reached is."""
    reason: str


class Drain(Message, kw_only=True):
    """Finish or hand over what is in flight, save, then answer with `Drained`."""

    deadline_s: float
    save: bool = True
    gone: tuple[str, ...] = ()
    """Actors that are dead and will not be started again: nothing that they are told arrives."""


class Drained(Message, kw_only=True):
    """Nothing of this actor's is in flight any more."""

    actor: str


class PeerRestarted(Message, kw_only=True):
    """The supervisor restarted this actor; what was in its memory is gone."""

    actor: str
    incarnation: NonNegative


class SnapshotRequested(Message, kw_only=True):
    """Asks for the state of the run; answered with `Snapshot`."""


class Snapshot(Message, kw_only=True):
    """The run as the supervisor sees it."""

    run: dict[str, Any]
    actors: list[dict[str, Any]]
    last_metrics: dict[str, float]
    events: list[dict[str, Any]]


class StopRun(Message, kw_only=True):
    """Ends the run."""

    reason: str
    at_once: bool = False


class StacksRequested(Message, kw_only=True):
    """Asks an actor for the Python stacks of all its threads; answered with `Stacks`."""


class Stacks(Message, kw_only=True):
    """Answer to `StacksRequested`."""

    text: str


class StopAccepted(Message, kw_only=True):
    """Answer to `StopRun`: the run is on its way to its end."""

    phase: str


class ActorStacksRequested(Message, kw_only=True):
    """A client asks for the stacks of one actor; answered with `Stacks` or `Refused`."""

    actor: str


class LogRequested(Message, kw_only=True):
    """A client asks for a piece of a log; answered with `LogRead` or `Refused`."""

    log: str
    """Name of an actor, `events` or `metrics`."""
    offset: int = -1
    """Byte to read from; negative: the end of the log, as much as `bytes_max` allows."""
    bytes_max: NonNegative = 65536


class LogRead(Message, kw_only=True):
    """Answer to `LogRequested`."""

    data: bytes
    offset: NonNegative
    """Where to go on reading."""


class TapRead(Message, kw_only=True):
    """A client takes what a tap of an actor has copied; the first one opens the tap.

    Answered with `Tapped` or `Refused`. A tap that nobody reads for 5 s is closed.
    """

    actor: str
    """Whose traffic: the tap is in its process."""
    tap: str
    """Chosen by the reader, so that two readers do not share one."""
    peers: str = "*"
    """Name of the other side; `*` and `?` as in file names."""
    sent: bool = True
    """What the actor sends to these peers."""
    received: bool = False
    """What arrives from them."""
    close: bool = False
    """This is the last read."""


class TrafficCopy(Struct, frozen=True, kw_only=True):
    """One message as a tap saw it. Long bodies and buffers are not copied whole."""

    at_ns: NonNegative
    """Wall clock of the copy, nanoseconds since 1970."""
    outgoing: bool
    peer: str
    kind: str
    """`tell`, `ask`, `reply` or `refused`."""
    num_bytes: NonNegative
    """Of all frames of the message."""
    header: bytes
    body: bytes
    """Empty when it is longer than 64 KiB."""
    buffers: list[bytes] = []
    """The first 256 bytes of the first 16 buffer frames."""


class Tapped(Message, kw_only=True):
    """Answer to `TapRead`: what was copied since the last one, oldest first."""

    copies: list[TrafficCopy]
    left: NonNegative = 0
    """Copies that wait for the next read."""
    dropped: NonNegative = 0
    """Messages that were not copied since there was no room."""
    opened: bool = False
    """This read opened the tap: nothing was copied before it."""


class RecorderRead(Message, kw_only=True):
    """Asks an actor for what its flight recorder holds about a trajectory or group.

    Answered with `RecorderLines` or `Refused`.
    """

    actor: str
    about: str
    bytes_max: NonNegative = 1 << 18
    """Of the lines of one answer; the latest ones are kept."""


class RecorderLines(Message, kw_only=True):
    """Answer to `RecorderRead`."""

    about: dict[str, Any]
    """Of the recording: actor, incarnation, host, ..."""
    lines: list[bytes]
    """`milepost.actors.recorder.lines`, oldest first."""
    left_out: NonNegative = 0
    """Older lines that found no room in this answer."""
    reaches_back: bool = True
    """The recording still holds its first line."""


class PinRequested(Message, kw_only=True):
    """Write the flight recorder to a file that nothing overwrites; answered with `Pinned`."""

    reason: str
    actor: str = ""
    """Empty: every actor of the run."""


class Pinned(Message, kw_only=True):
    """Answer to `PinRequested`."""

    files: list[str]
    refused: list[str] = []
    """Actors that did not, each with its reason."""


class FreezeRequested(Message, kw_only=True):
    """Hold these actors: nothing is decided until they thaw. Answered with `Frozen` or `Refused`.

    Work in progress goes on; its results wait, as all messages do.
    """

    actors: tuple[str, ...] = ()
    """Empty: every actor of the run."""
    seconds: NonNegative = 0
    """After which each thaws by itself; 0: as long as the run's deadlines allow."""


class Frozen(Message, kw_only=True):
    """Answer to `FreezeRequested`."""

    actors: tuple[str, ...]
    seconds: float
    refused: list[str] = []
    """Actors that are not held, each with its reason."""


class ThawRequested(Message, kw_only=True):
    """Let held actors go on; answered with `Thawed`."""

    actors: tuple[str, ...] = ()
    """Empty: every actor of the run."""


class Thawed(Message, kw_only=True):
    """Answer to `ThawRequested`: these were held, and are not any more."""

    actors: tuple[str, ...]


class ResourceTaken(Message, kw_only=True):
    """An actor holds something outside its process that must not outlive the run (a sandbox)."""

    actor: str
    name: str
    """Unique in the run."""
    release: list[str]
    """Command line that gives it back; must not fail when it is gone already."""
    lease_s: Annotated[float, Meta(ge=0)] = 0.0
    """Said again within this time, the lease begins again; otherwise the supervisor gives it back
    while the run goes on. 0: held as long as the actor lives."""


class ResourceReleased(Message, kw_only=True):
    """The resource of this name was given back."""

    actor: str
    name: str


class PortOpened(Message, kw_only=True):
    """An actor listens on a port that it has bound by itself: for clients, not for the run."""

    actor: str
    endpoint: str
    """`tcp://HOST:PORT` or `http://HOST:PORT`, as clients reach it."""
    inode: Annotated[int, Meta(ge=0)]
    """The kernel's number of the listening socket, by which it is found again."""


SupervisorInbox: TypeAlias = (
    Hello
    | Ready
    | Heartbeat
    | StepRecorded
    | EventReported
    | WorkFinished
    | GuardTripped
    | SnapshotRequested
    | StopRun
    | ActorStacksRequested
    | LogRequested
    | TapRead
    | RecorderRead
    | PinRequested
    | FreezeRequested
    | ThawRequested
    | ResourceTaken
    | ResourceReleased
    | PortOpened
)
