"""What a trainer rank can be asked and told."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from milepost.messages.bulk import Bulk
from milepost.messages.shared import Message, NonNegative, Positive, Seconds


class VersionPublished(Message, kw_only=True):
    """Every engine confirmed `version`. Sent by the publisher to all who count versions."""

    version: NonNegative
    final: bool = False
    """True: the trainer will make no further version."""
    digest: str = ""
    """Of its weights, as in `ActivateEpoch`; empty when the sender does not have it."""


class VersionFailed(Message, kw_only=True):
    """The epoch of `version` failed; the engines still serve `serving`."""

    version: NonNegative
    serving: NonNegative
    reason: str


class ScoreRows(Message, kw_only=True):
    """Log-probs of these rows under version `version`; answered with `RowsScored`."""

    version: NonNegative
    rows: tuple[Bulk, ...]
    """int32 [T] each"""
    temperature: float = 1.0


class RowsScored(Message, kw_only=True):
    """Answer to `ScoreRows`."""

    version: NonNegative
    logprobs: tuple[Bulk, ...]
    """float32 [T] each; position 0 is 0."""


class PartChecked(Message, kw_only=True):
    """Rank to rank 0: my part of the batch of `step` is here, and the door has looked at it."""

    step: NonNegative
    attempt: NonNegative
    """Counts how often the batch of this step was asked for, after refusals at the door."""
    rank: NonNegative
    group_ids: tuple[str, ...] = ()
    """Groups the door refuses."""
    reasons: tuple[str, ...] = ()
    oldest: dict[str, int] = {}
    """For each group let in, the oldest version of its tokens in this part."""
    exhausted: str = ""
    """Why there is no batch, and never will be; empty when there is one."""
    draining: bool = False
    """There is none since the run drains, as in `BatchExhausted`."""


class LedgerWritten(Message, kw_only=True):
    """The rollout actor's journal names every group trained up to `version`, for good.

    From then on no checkpoint needs to name them.
    """

    version: NonNegative


class RankOrder(StrEnum):
    """What rank 0 has all ranks do, in the order it says so."""

    ASK = "ask"
    """Ask the buffer for the batch of `step` and check it; `PartChecked`."""
    TRAIN = "train"
    """Train the batch that was checked."""
    EXPORT = "export"
    SAVE = "save"
    SCORE = "score"
    FINISH = "finish"
    """Nothing more will be ordered."""


class RankOrdered(Message, kw_only=True):
    """Rank 0 to the others: collective work must begin on all ranks, in one order."""

    index: NonNegative
    """Counts the orders, so that a gap is noticed."""
    order: RankOrder
    step: NonNegative
    """Batch (ask, train), or batches trained (export, save, score)."""
    attempt: NonNegative = 0
    final: bool = False
    """Export: of the last version."""
    rows: tuple[Bulk, ...] = ()
    """Score: int32 [T] each."""
    temperature: float = 1.0


class SendVersion(Message, kw_only=True):
    """Publisher to the rank that exported `version`: broadcast it; answered with `VersionSent`."""

    version: NonNegative
    group: str
    """As in `ReceiveVersion`."""
    world_size: Positive
    deadline_s: Seconds


class SendBytes(Message, kw_only=True):
    """Publisher to the rank that exported `version`: some engine cannot open its `memory`.

    Every bucket is told once more, with its tensors; then `VersionSent`.
    """

    version: NonNegative


class KeepVersions(Message, kw_only=True):
    """Publisher to the rank that exports: what engines may still read from the GPU's memory.

    Of all versions up to `announced`, others may be overwritten.
    """

    versions: tuple[NonNegative, ...]
    announced: NonNegative
    """The newest version that the publisher has heard of."""


class VersionSent(Message, kw_only=True):
    """A version was broadcast, or told with its bytes; or could not be, and why."""

    version: NonNegative
    ok: bool
    reason: str = ""


TrainerInbox: TypeAlias = (
    VersionPublished
    | VersionFailed
    | ScoreRows
    | PartChecked
    | RankOrdered
    | LedgerWritten
    | SendVersion
    | SendBytes
    | KeepVersions
)
