"""What the rollout actor can be told."""

from __future__ import annotations

from typing import Any, TypeAlias

from milepost.messages.shared import Finite, Message, NonNegative, Status


class CreditsGranted(Message, kw_only=True):
    """The buffer allows `samples_total` trajectories to have been issued since the run began.

    A running total, so that a repeated or reordered grant changes nothing. The rollout actor
    keeps issued - (dropped and to be replaced) <= samples_total.
    """

    samples_total: NonNegative


class AgentReady(Message, kw_only=True):
    """An agent host joined, or changed how many episodes it can run at once."""

    agent: str
    episodes_max: NonNegative


class AgentLeft(Message, kw_only=True):
    """An agent host leaves; its episodes still running are to be re-issued."""

    agent: str
    reason: str


class EpisodeEnded(Message, kw_only=True):
    """An agent finished one attempt of one episode."""

    trajectory_id: str
    attempt: NonNegative
    status: Status
    reward: Finite | None = None
    """Set exactly when status is completed or truncated; finite."""
    cause: str = ""
    """Why, in words, when status is not completed."""
    metrics: dict[str, float] = {}
    info: dict[str, Any] = {}
    """JSON values; `messages` is the conversation as the agent saw it (kept for transcripts)."""
    num_turns: NonNegative = 0
    seconds: float = 0.0
    generation: NonNegative | None = None
    """`ChatReply.generation` of the last reply that the agent received; None: it cannot tell."""
    received: tuple[NonNegative, ...] = ()
    """Those of all replies that it received; empty: it cannot tell."""


class TrajectoryLost(Message, kw_only=True):
    """A session cannot deliver a trajectory; its prompt is to be re-issued or dropped."""

    trajectory_id: str
    attempt: NonNegative
    cause: str


class GroupStored(Message, kw_only=True):
    """The buffer holds the whole group."""

    group_id: str
    num_tokens: NonNegative


class GroupsStored(Message, kw_only=True):
    """The buffer holds these groups, whole (imported conversations come by the hundred)."""

    group_ids: tuple[str, ...]


class GroupDropped(Message, kw_only=True):
    """The buffer will not hand this group to the trainer, or the trainer's door refused it."""

    group_id: str
    reason: str
    retry: bool
    """True: issue the prompt again as a new group."""
    consumed: bool = False
    """True: its credit is spent and does not come back: it was in a batch already, or was sampled
    beyond need. False also for one that `StoreRecovered.groups_spent` has counted already."""


class StoreRecovered(Message, kw_only=True):
    """The buffer (re)started: what it holds. Nothing is issued before it came.

    The rollout actor settles its ledger by it: groups named here are stored or trained, and
    whatever else it believed to be in the buffer is lost there and is issued again.
    """

    stored: tuple[str, ...]
    """Groups held whole, in order."""
    trained: dict[str, NonNegative]
    """Group -> step, for groups trained since the oldest checkpoint that is kept."""
    groups_spent: NonNegative
    """Groups trained, or dropped with their credit spent, since the run began."""


class EpisodesAlive(Message, kw_only=True):
    """These episodes made progress since the last such word; their leases are renewed."""

    trajectory_ids: tuple[str, ...]


class GroupsTrained(Message, kw_only=True):
    """These groups were in the batch of `step` and will never be issued again."""

    group_ids: tuple[str, ...]
    step: NonNegative
    version: NonNegative


class EvaluationFinished(Message, kw_only=True):
    """The evaluation of `version` is over; a rollout that waited for it may start."""

    version: NonNegative


class LedgerRequested(Message, kw_only=True):
    """Asks for the ledger's balance; answered with `LedgerReport`."""


class LedgerReport(Message, kw_only=True):
    """issued = trained + dropped + in flight, in groups, with names of what is in flight."""

    issued: NonNegative
    trained: NonNegative
    dropped: dict[str, int]
    in_flight: list[dict[str, Any]]
    """Each: group_id, owner (actor), state, since_s, trajectories still missing."""
    balanced: bool


RolloutInbox: TypeAlias = (
    CreditsGranted
    | AgentReady
    | AgentLeft
    | EpisodeEnded
    | TrajectoryLost
    | EpisodesAlive
    | GroupStored
    | GroupsStored
    | GroupDropped
    | StoreRecovered
    | GroupsTrained
    | EvaluationFinished
    | LedgerRequested
)
