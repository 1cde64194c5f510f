"""What the buffer actor can be asked and told."""

from __future__ import annotations

from typing import Any, TypeAlias

from milepost.messages.shared import Message, NonNegative, Positive
from milepost.messages.trajectory import Trajectory


class GroupOpened(Message, kw_only=True):
    """The rollout actor issued a group of `size` trajectories."""

    group_id: str
    prompt_id: str
    size: Positive
    label: Any = None
    """Of the prompt; said only where a filter of the user's own may ask, as `metadata` is."""
    metadata: dict[str, Any] = {}


class GroupResized(Message, kw_only=True):
    """The group will have only `size` members: the others failed and are not retried."""

    group_id: str
    size: Positive
    reason: str


class GroupAbandoned(Message, kw_only=True):
    """The rollout actor gave the group up; members that arrive later are refused by name."""

    group_id: str
    reason: str


class IssueEnded(Message, kw_only=True):
    """The rollout actor will issue no further group: a batch that cannot be filled never will."""

    reason: str
    draining: bool = False
    """The run drains, and goes on some day; False: the data ended."""


class TrajectoryFinished(Message, kw_only=True):
    """One trajectory, from a session, with all its rows."""

    trajectory: Trajectory
    """Its first row."""
    others: tuple[Trajectory, ...] = ()
    """Its further rows, in order."""


class TrajectoriesFinished(Message, kw_only=True):
    """Several trajectories at once (imported conversations)."""

    trajectories: tuple[Trajectory, ...]


class BatchRequested(Message, kw_only=True):
    """A trainer rank wants its part of the batch of `step`. Answered with `Batch`.

    The same (step, rank) asked again, by a rank that restarted, gets the same answer. A step that
    is neither the next one nor one of the last is answered with `Refused`.
    """

    step: NonNegative
    rank: NonNegative
    world_size: Positive
    version: NonNegative
    """Weight version the rank will train, before the step."""


class Batch(Message, kw_only=True):
    """One rank's part of the batch of `step`."""

    step: NonNegative
    trajectories: tuple[Trajectory, ...]
    """Rows: a trajectory of several may have them on several ranks."""
    group_ids: tuple[str, ...]
    """All groups of the batch, over all ranks."""
    num_trajectories: NonNegative
    """Over all ranks, each once however many rows it has; normalises per-sample aggregation."""
    num_loss_tokens: NonNegative
    """Over all ranks; the normaliser of per-token aggregation."""
    minibatch_of: tuple[NonNegative, ...]
    """For each row of this rank, the optimizer step (minibatch) it belongs to."""
    minibatch_loss_tokens: tuple[NonNegative, ...]
    """For each minibatch, loss tokens over all ranks."""
    minibatch_trajectories: tuple[NonNegative, ...]
    """For each minibatch, trajectories over all ranks."""
    metrics: dict[str, float]
    """`rollout/...` metrics of the whole batch."""
    wait_s: float
    """How long the request waited in the buffer."""


class BatchExhausted(Message, kw_only=True):
    """Answer instead of `Batch`: no batch will come, since the data ended or the run drains."""

    reason: str
    draining: bool = False
    """The run drains: the work is not done, and a trainer waits for its own order to drain."""


class StepTrained(Message, kw_only=True):
    """Rank 0 trained the batch of `step`; these groups are spent."""

    step: NonNegative
    version: NonNegative
    """Version after the step."""
    group_ids: tuple[str, ...]


class GroupsRefused(Message, kw_only=True):
    """The trainer's door refused these groups (failed certificate, stale at training time)."""

    step: NonNegative
    group_ids: tuple[str, ...]
    reasons: tuple[str, ...]


class TokensAccounted(Message, kw_only=True):
    """A session actor says where tokens ended that reach no buffer, since it said so last."""

    tokens: dict[str, NonNegative]
    """Account -> sampled tokens."""


class CheckpointSaved(Message, kw_only=True):
    """A checkpoint of `step` is complete on disk: everything trained up to it may be forgotten."""

    step: NonNegative
    folder: str


BufferInbox: TypeAlias = (
    GroupOpened
    | GroupResized
    | GroupAbandoned
    | IssueEnded
    | TrajectoryFinished
    | TrajectoriesFinished
    | BatchRequested
    | StepTrained
    | GroupsRefused
    | TokensAccounted
    | CheckpointSaved
)
