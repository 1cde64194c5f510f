"""What the session actor holds for one conversation, and for the turn in flight on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from milepost.actors.session.families import Seam
from milepost.messages.shared import Purpose

if TYPE_CHECKING:
    from milepost.actors.effects import Request
    from milepost.actors.session.generation import RoutesExpected
    from milepost.actors.session.history import Plan
    from milepost.actors.session.record import Record
    from milepost.actors.session.refusal import TurnRefused
    from milepost.actors.session.reply import SampledReply
    from milepost.actors.session.streaming import ReplyStream
    from milepost.actors.session.text.rendering import Piece
    from milepost.messages.session import FinishTrajectory, SessionSpec
    from milepost.messages.shared import SamplingParams
    from milepost.messages.trajectory import Trajectory

NO_SEAM: Final = Seam()
SERVICE_KINDS: Final = frozenset({"engine", "internal"})
"""Of refusals: nobody did anything wrong, and nothing was generated."""


class Stage(Enum):
    """Where a turn is."""

    RENDER = "render"
    GENERATE = "generate"
    WAIT = "wait for an engine"
    READ = "read the reply"


@dataclass(slots=True, eq=False)
class Flight:
    """One turn between its request and its reply. Its session does not change meanwhile."""

    request: Request
    epoch: int
    """Number of this generation in its session: of two, the later counts."""
    plan: Plan
    tokens_max: int | None
    """The client's own bound of the reply."""
    since_s: float
    call_number: int = 0
    """In the ids of its calls: greater than any that its session knew when the turn was planned."""
    number: int = 0
    """Under which its asker gives it up; 0: it does not."""
    stage: Stage = Stage.RENDER
    text: bytes = b""
    """Name of the text to render."""
    piece: Piece | None = None
    seam: Seam = NO_SEAM
    prompt_tokens: int = 0
    routes: RoutesExpected | None = None
    """That are wanted with the reply; None: none are."""
    sampling: SamplingParams | None = None
    bound: str = ""
    """The run's limit that a reply has reached when it is cut off at `sampling.tokens_max`; empty:
    none, only its client's own."""
    request_id: str = ""
    """Of the newest try."""
    engine: str = ""
    """That the newest try went to."""
    tries: int = 0
    failing_since_s: float | None = None
    reply: SampledReply | None = None
    cached_tokens: int = 0
    adapter: str = ""
    """To sample under; empty: none."""
    stream_name: str = ""
    """Under which parts of the reply are told; empty: they are not."""
    num_parts: int = 0
    """Told so far."""
    stream: ReplyStream | None = None
    """What its client has of the reply so far."""


@dataclass(slots=True, eq=False)
class Ending:
    """A verdict on its way: assembled, then delivered."""

    verdict: FinishTrajectory
    waiting: list[Request] = field(default_factory=list)
    """Who asked, perhaps more than once."""
    rows: tuple[Trajectory, ...] = ()
    """Of the trajectory, once they are assembled."""
    tries: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One conversation. Its record changes only when a turn is committed."""

    spec: SessionSpec
    record: Record
    opened_by: str
    active_s: float
    """When it was last opened, asked or committed."""
    replied_s: float | None = None
    """When the last reply was committed, while no turn is in flight and none failed since."""
    non_generation_s: float = 0.0
    """From replies to the next requests, in all: tools, and whatever else the agent did."""
    epoch: int = 0
    """Generations asked for so far."""
    call_number: int = 0
    """The greatest in ids of calls so far, sampled or quoted by a client."""
    engine: str = ""
    rank: int = 0
    """Of its engine's data-parallel ranks, modulo their number."""
    moves: list[str] = field(default_factory=list)
    """Why the session left an engine, each time."""
    flights: dict[int, Flight] = field(default_factory=dict)
    """Turns between request and reply, by epoch, the oldest first; unless the record takes several,
    all but the oldest are still rendered."""
    refused_by: str = ""
    """The bound that refused a turn, if no turn was committed since."""
    bounds: dict[int, str] = field(default_factory=dict)
    """Of a tree, by number of the turn that a branch ends with: the bound that refused to continue
    it."""
    fault: str = ""
    """Why a turn could not be served, likewise."""
    ending: Ending | None = None
    heard: set[int] = field(default_factory=set)
    """Numbers of the replies that were written to clients of the HTTP door."""

    @property
    def is_free(self) -> bool:
        """Opened through the HTTP door, by itself: nobody gives it a verdict, nothing trains it."""
        return not self.spec.deliver_to

    @property
    def is_trained(self) -> bool:
        """Whether a row of it may come to a trainer."""
        return not self.is_free and self.spec.purpose is Purpose.TRAIN

    def refused(self, refused: TurnRefused) -> None:
        """A turn ended so; what that says of the conversation as a whole is kept."""
        if refused.kind == "limit":
            self.refused_by = refused.limit
            if refused.parent is not None:
                self.bounds[refused.parent] = refused.limit
        elif refused.kind in SERVICE_KINDS:
            self.fault = f"{refused.kind}: {refused}"

    def asked(self, flight: Flight, now_s: float) -> None:
        """A turn begins."""
        if self.replied_s is not None:
            self.non_generation_s += now_s - self.replied_s
        self.replied_s = None
        self.epoch, self.active_s = flight.epoch, now_s
        self.call_number = flight.call_number
        self.flights[flight.epoch] = flight

    def served(self, flight: Flight, now_s: float) -> None:
        """A turn was committed: what was refused before it does not matter any more."""
        self.refused_by = self.fault = ""
        if flight.plan.parent is not None:
            # What it continues goes on.
            self.bounds.pop(flight.plan.parent, None)
        del self.flights[flight.epoch]
        self.active_s = now_s
        if not self.flights:
            self.replied_s = now_s

    def place(self) -> dict[str, Any]:
        """Where the conversation is: which turn, who works on it, and since when."""
        flight = next(iter(self.flights.values()), None)
        turn, at, since_s = self.record.num_turns + 1, "agent", self.active_s
        if flight is not None:
            turn, at, since_s = flight.plan.base_turns + 1, flight.stage.value, flight.since_s
        elif self.ending is not None:
            turn, at = self.record.num_turns, "delivery"
        return {
            "trajectory_id": self.spec.trajectory_id,
            "turn": turn,
            "at": at,
            "engine": self.engine,
            "since_s": since_s,
        }

    @property
    def tokens_at_risk(self) -> int:
        """Sampled tokens that are here and in no account: they die with this process."""
        if self.ending is not None and self.ending.rows:
            return sum(bytes(row.loss_mask.data).count(1) for row in self.ending.rows)
        return self.record.num_sampled_tokens

    def has(self, flight: Flight) -> bool:
        """False when the turn was stopped meanwhile."""
        return self.flights.get(flight.epoch) is flight

    def superseded_by(self, flight: Flight) -> list[Flight]:
        """Turns whose place this one takes when it goes to an engine."""
        if self.record.takes_parallel:
            return []
        return [other for other in self.flights.values() if other.epoch < flight.epoch]

    def is_contested(self, flight: Flight) -> bool:
        """Whether a newer turn may still take its place."""
        return not self.record.takes_parallel and flight.epoch < max(self.flights)

    def validate(self) -> None:
        """Assert what holds between record and turns in flight; costs every token."""
        self.record.validate()
        for epoch, flight in self.flights.items():
            assert epoch == flight.epoch <= self.epoch, "SE-3 (one turn): a flight is misfiled"
        if not self.record.takes_parallel:
            later = sorted(self.flights)[1:]
            rendered = all(self.flights[epoch].stage is Stage.RENDER for epoch in later)
            assert rendered, "SE-3 (one turn): a turn went to an engine and stopped no older one"
        assert not self.flights or self.ending is None, "a session with a verdict generates"


@dataclass(slots=True)
class Counters:
    """Since the actor started."""

    sessions_opened: int = 0
    sessions_abandoned: int = 0
    sessions_evicted: int = 0
    turns: int = 0
    retries: int = 0
    branches: int = 0
    """Turns of tree sessions that left the newest conversation."""
    tokens_sampled: int = 0
    turns_cut: int = 0
    """Committed after the last reply that the verdict on their conversation had seen."""
    accounts: dict[str, int] = field(default_factory=dict)
    """Sampled tokens that no buffer gets, by where they ended: `stopped` (their turn was, or
    failed), `aborted` by an engine, `tried_again`, `unseen` (by their verdict), `not_trained` (a
    branch, or a stop token that its row went on without), `abandoned` with their session,
    `undelivered`, `evaluated` and `probed` (no waste, but not trained)."""
    clients_gone: int = 0
    """Turns that were stopped because nobody waited for them any more."""
    trajectories_sent: int = 0
    rows: int = 0
    """Of trajectories that were assembled: more than trajectories when sessions branch."""
    trajectories_lost: int = 0
    conversations_imported: int = 0
    engine_moves: int = 0
    works_inline: int = 0
    works_threaded: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """By kind."""
    mismatches: dict[str, int] = field(default_factory=dict)
    """Finished trajectories whose canonical rendering differs, by kind of the first difference."""

    def account(self, name: str, num_tokens: int) -> None:
        """These sampled tokens end here."""
        if num_tokens:
            self.accounts[name] = self.accounts.get(name, 0) + num_tokens
