"""All that a monitor can be told, by its run or by the folder of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from milepost.launch.traffic.seen import Seen
    from milepost.messages.supervisor import Snapshot


class About(Struct, frozen=True, kw_only=True):
    """What does not change while a run goes on."""

    name: str
    folder: str
    steps: int
    engines: int = 1
    success: str = "rollout/solved"
    """Metric of a step that counts successes."""
    supervised: bool = False
    sync: bool = False
    staleness_max: int | None = None
    """Most versions behind that a group is trained; None: no limit."""
    stale_is_corrected: bool = False
    """Groups beyond that limit are trained all the same, with a correction."""
    difference_max: float = 0.0
    """Nats; largest canary difference that the publisher lets pass."""
    routes: Literal["", "replayed", "not replayed", "dense"] = ""
    """What is known of the experts' routes; empty: nothing, the model cannot be read here."""
    guard_max: float = 0.0
    """Nats; mean difference at which the run stops itself; 0: it does not."""


class Attached(Struct, frozen=True, kw_only=True):
    """A supervisor answers; a resumed run has another id."""

    run_id: str


class Heard(Struct, frozen=True, kw_only=True):
    """One snapshot."""

    snapshot: Snapshot
    wall_s: float
    clock_s: float
    """Monotonic, as the actors of this machine count."""


class Recorded(Struct, frozen=True, kw_only=True):
    """Objects of metrics.jsonl and events.jsonl, in their order."""

    steps: tuple[dict[str, Any], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    anew: bool = False
    """The files were written again: what was read of them before is void."""


class Silent(Struct, frozen=True, kw_only=True):
    """The supervisor cannot be heard; the last picture stands."""

    reason: str


class Ended(Struct, frozen=True, kw_only=True):
    """The run is over: its summary."""

    summary: dict[str, Any]


class Copied(Struct, frozen=True, kw_only=True):
    """Messages that a tap copied, oldest first, and how many found no room."""

    seen: tuple[Seen, ...]
    dropped: int = 0


class Logged(Struct, frozen=True, kw_only=True):
    """The last lines of an actor's log."""

    actor: str
    lines: tuple[str, ...]


Update: TypeAlias = Attached | Heard | Recorded | Silent | Ended | Copied | Logged


class Wanted(Struct, frozen=True):
    """What the page in front needs beside the snapshots; nothing else is asked for."""

    log: str = ""
    """Actor whose log is read."""
    finished: bool = False
    """Finished trajectories are copied on their way to the buffer."""
    trajectory: str = ""
    """Its messages are copied at sessions and rollout."""
