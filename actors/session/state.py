"""What the session actor holds for one conversation, and for the turn in flight on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from milepost.actors.session.families import Seam
from milepost.actors.session.row import TokenRow

if TYPE_CHECKING:
    from milepost.actors.effects import Request
    from milepost.actors.session.history import LinearHistory, Plan
    from milepost.actors.session.row import SampledReply
    from milepost.actors.session.text.rendering import Piece
    from milepost.messages.session import FinishTrajectory, SessionSpec
    from milepost.messages.shared import SamplingParams
    from milepost.messages.trajectory import Trajectory

NO_SEAM: Final = Seam()


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
    stage: Stage = Stage.RENDER
    text: bytes = b""
    """Name of the text to render."""
    piece: Piece | None = None
    seam: Seam = NO_SEAM
    prompt_tokens: int = 0
    sampling: SamplingParams | None = None
    bound: str = ""
    """The limit that a reply has reached when it is cut off at `sampling.tokens_max`."""
    request_id: str = ""
    """Of the newest try."""
    tries: int = 0
    failing_since_s: float | None = None
    reply: SampledReply | None = None
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class Ending:
    """A verdict on its way: assembled, then delivered."""

    verdict: FinishTrajectory
    waiting: list[Request] = field(default_factory=list)
    """Who asked, perhaps more than once."""
    trajectory: Trajectory | None = None
    tries: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. Its row and history change only when a turn is committed."""

    spec: SessionSpec
    history: LinearHistory
    opened_by: str
    active_s: float
    """When it was last opened, asked or committed."""
    row: TokenRow = field(default_factory=TokenRow)
    epoch: int = 0
    """Generations asked for so far."""
    engine: str = ""
    moves: list[str] = field(default_factory=list)
    """Why the session left an engine, each time."""
    flight: Flight | None = None
    refused_by: str = ""
    """The bound that refused a turn, if no turn was committed since."""
    cut_by: str = ""
    """The bound that cut off the newest reply."""
    ending: Ending | None = None

    @property
    def limit(self) -> str:
        """The bound this conversation ran into: its trajectory is truncated. Empty: none."""
        return self.refused_by or self.cut_by

    @property
    def sampled_tokens(self) -> int:
        """Tokens of its replies."""
        return sum(turn.end - turn.prompt_end for turn in self.row.turns)

    def validate(self) -> None:
        """Assert what holds between row, history and turn in flight; costs the whole row."""
        self.row.validate()
        assert len(self.row.turns) == len(self.history.ends), "row and history differ in turns"
        assert self.flight is None or self.flight.epoch == self.epoch, "SE-3 (one turn)"
        assert self.flight is None or self.ending is None, "a session with a verdict generates"


@dataclass(slots=True)
class Counters:
    """Since the actor started."""

    sessions_opened: int = 0
    sessions_abandoned: int = 0
    sessions_evicted: int = 0
    turns: int = 0
    retries: int = 0
    tokens_sampled: int = 0
    tokens_wasted: int = 0
    """Sampled for a turn that was superseded, abandoned or tried again."""
    trajectories_sent: int = 0
    trajectories_lost: int = 0
    conversations_imported: int = 0
    engine_moves: int = 0
    works_inline: int = 0
    works_threaded: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """By kind."""
    mismatches: dict[str, int] = field(default_factory=dict)
    """Finished trajectories whose canonical rendering differs, by kind of the first difference."""
