"""What the publisher can be asked and told."""

from __future__ import annotations

from typing import TypeAlias

from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec
from milepost.messages.shared import Message, NonNegative, Positive, Seconds


class VersionReady(Message, kw_only=True):
    """The trainer made `version`: what it is made of. The buckets follow."""

    version: NonNegative
    tensors: tuple[TensorSpec, ...]
    num_buckets: Positive
    digest: str
    """As in `ActivateEpoch`."""
    final: bool = False
    """No further version will come."""
    probe_rows: tuple[Bulk, ...] = ()
    """int32 [T] each: short token rows for the canary, scored by the trainer while it exported."""
    probe_logprobs: tuple[Bulk, ...] = ()
    """float32 [T] each, at temperature 1 under exactly these weights; position 0 is 0."""


class BucketReady(Message, kw_only=True):
    """One bucket of `version`; its buffers may lie in shared memory."""

    version: NonNegative
    index: NonNegative
    names: tuple[str, ...]
    tensors: tuple[Bulk, ...]


class HoldVersion(Message, kw_only=True):
    """Do not activate a new version for `lease_s`; answered with `VersionHeld`."""

    holder: str
    lease_s: Seconds


class VersionHeld(Message, kw_only=True):
    """The engines serve `version`, and will until the hold is released or its lease ends."""

    version: NonNegative


class ReleaseVersion(Message, kw_only=True):
    """The holder is done."""

    holder: str


class EngineReady(Message, kw_only=True):
    """An engine (re)started and serves no confirmed version yet."""

    engine: str


PublisherInbox: TypeAlias = VersionReady | BucketReady | HoldVersion | ReleaseVersion | EngineReady
