"""The life of one child: each state a small frozen class with only its own fields.

New -> Greeted -> Ready -> Running -> Draining -> Drained -> Stopping -> Stopped
 |        |         |         |          |                      |
 +--------+---------+---------+----------+-- Doomed (we kill it) +-> Failed
                              |
                              +-> Restarting -> New (next incarnation)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from milepost.messages.supervisor import Heartbeat
from milepost.supervisor.plan import ChildPlan


@dataclass(frozen=True, slots=True)
class New:
    """Its process was ordered; it has not said HELLO."""

    since_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Greeted:
    """It said HELLO and was welcomed; it loads what it needs."""

    since_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """It can work, and waits for the others."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """It was told to begin."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Draining:
    """It was asked to finish or hand over what is in flight, and to save."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing of it is in flight any more."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Restarting:
    """It died; its next incarnation starts at `at_s`."""

    since_s: float
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Doomed:
    """We sent SIGKILL for `reason` and wait for its end."""

    since_s: float
    reason: str
    give_up_s: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """It was told to stop (SIGTERM); SIGKILL follows at `kill_s`."""

    since_s: float
    kill_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """Its process has ended as asked."""

    since_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """Its process has ended, or never lived, against the plan."""

    since_s: float
    reason: str


ChildState: TypeAlias = (
    New
    | Greeted
    | Ready
    | Running
    | Draining
    | Drained
    | Restarting
    | Doomed
    | Stopping
    | Stopped
    | Failed
)


@dataclass(slots=True)
class Child:
    """What the supervisor knows about one child. Only the core changes it."""

    plan: ChildPlan
    state: ChildState
    incarnation: int = 0
    pid: int = 0
    #: Monotonic times of earlier restarts, oldest first; only those inside the policy's window.
    restarts: tuple[float, ...] = ()
    num_restarts: int = 0
    #: What it found out while starting.
    facts: dict[str, Any] = field(default_factory=dict)
    #: Where this incarnation listens on ports of its own.
    ports: tuple[str, ...] = ()
    heartbeat: Heartbeat | None = None
    #: When it last said anything; the heartbeat deadline counts from here.
    heard_s: float = 0.0
    #: When the progress in its heartbeats last grew.
    progress_s: float = 0.0
    #: It reported that its work is done; dying afterwards is no failure of the run.
    finished: bool = False
    #: The reason it gave by itself for its coming end.
    last_words: str = ""

    @property
    def name(self) -> str:
        """Process name."""
        return self.plan.name

    @property
    def state_name(self) -> str:
        """The state in one lower-case word."""
        return type(self.state).__name__.lower()

    @property
    def has_process(self) -> bool:
        """Whether a process of it may exist."""
        return not isinstance(self.state, Restarting | Stopped | Failed)
