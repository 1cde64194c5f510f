"""What a trainer rank can be asked and told."""

from __future__ import annotations

from typing import TypeAlias

from milepost.messages.bulk import Bulk
from milepost.messages.shared import Message, NonNegative


class VersionPublished(Message, kw_only=True):
    """Every engine confirmed `version`. Sent by the publisher to all who count versions."""

    version: NonNegative
    final: bool = False
    """True: the trainer will make no further version."""


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


TrainerInbox: TypeAlias = VersionPublished | VersionFailed | ScoreRows
