"""What the publisher can be asked and told."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from milepost.messages.bulk import Bulk
from milepost.messages.engine import DeviceMemory, TensorSpec
from milepost.messages.shared import ChatMessage, Message, NonNegative, Positive, Seconds


class ProbeTurn(Struct, frozen=True, kw_only=True):
    """A turn for the canary through a session, as the trainer renders and scores it."""

    messages: list[ChatMessage]
    token_ids: Bulk
    """int32 [P], the whole prompt with what the template puts before a reply."""
    logprobs: Bulk
    """float32 [V], nats: of every token as the first of the reply, at temperature 1 under exactly
    these weights."""


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
    probe_turn: ProbeTurn | None = None
    """None: this version is published without a turn through a session."""
    tensor_digests: tuple[str, ...] = ()
    """xxh3-128 hex over the bytes of each of `tensors`; empty when they are not known."""
    trained: bool = False
    """An optimizer step with a gradient and a learning rate came after the version before this one:
    the bytes must differ."""
    rendezvous: str = ""
    """`host:port` of the store where groups for a broadcast meet; empty with other transports."""
    memory: DeviceMemory | None = None
    """Where all of it lies on the trainer's GPU; None: bytes come with the buckets."""


class BucketReady(Message, kw_only=True):
    """One bucket of `version`; its buffers may lie in shared memory.

    A broadcast sends the bytes by itself, and within one GPU engines copy them: then the bucket has
    names and no tensors. They follow in a bucket of the same index after `SendBytes`.
    """

    version: NonNegative
    index: NonNegative
    names: tuple[str, ...]
    tensors: tuple[Bulk, ...]
    offsets: tuple[NonNegative, ...] = ()
    """Where each tensor begins in the version's `memory`, in bytes."""


class HoldVersion(Message, kw_only=True):
    """Do not activate a new version for `lease_s`; `VersionHeld`, or `HoldRefused`."""

    holder: str
    lease_s: Seconds
    fleet: bool = False
    """Of the evaluation engines: bring them to the published version first. The others go on."""


class VersionHeld(Message, kw_only=True):
    """The engines serve `version`, and will until the hold is released or its lease ends."""

    version: NonNegative
    fleet: bool = False
    """As in the question."""


class HoldRefused(Message, kw_only=True):
    """Answer to `HoldVersion`: the evaluation engines could not be brought to the version."""

    version: NonNegative
    reason: str


class ReleaseVersion(Message, kw_only=True):
    """The holder is done."""

    holder: str
    fleet: bool = False
    """As in the question that was answered."""


class EngineReady(Message, kw_only=True):
    """An engine (re)started and serves no confirmed version yet."""

    engine: str


PublisherInbox: TypeAlias = VersionReady | BucketReady | HoldVersion | ReleaseVersion | EngineReady
