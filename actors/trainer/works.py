"""Long work the trainer's cores order, and what comes back. Pure data: no arrays are touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from milepost.actors.effects import Work
from milepost.actors.routes import RoutesShape
from milepost.messages.buffer import Batch
from milepost.messages.bulk import Bulk
from milepost.messages.publisher import BucketReady, VersionReady


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What rows must agree with. A hash is empty when the model's folder has no such file."""

    vocabulary: int
    """Token ids are below it."""
    tokenizer_hash: str
    """xxh3-128 hex of tokenizer.json."""
    template_hash: str
    """xxh3-128 hex of the chat template, `milepost.actors.session.text.sources`."""
    routes: RoutesShape | None = None
    """What routes of the model look like; None: none are replayed."""
    is_mixture: bool = False
    """It has experts, so tokens of it have routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRules:
    """What the door needs to know beyond the row."""

    sft: bool
    model: ModelFacts
    version: int
    """Being trained; nothing can have been sampled under a later one."""
    digests: Mapping[int, str]
    """xxh3-128 hex of the weights of each version that this process knows to have been made."""
    keeps_caches: bool
    """Replies may go on over keys and values of older versions, from their own first one on."""
    routes: RoutesShape | None = None
    """What every row must bring; None: routes are not replayed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group the door will not let in."""

    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What the door found in one rank's part of a batch."""

    refusals: tuple[Refusal, ...]
    oldest: dict[str, int]
    """For each group let in, the oldest version of its tokens."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One batch trained (or given up, see `tripped`), the same on every rank."""

    metrics: dict[str, float]
    num_tokens: int
    """Over all ranks, prompts included."""
    train_s: float
    spread: bool
    """Some group had different rewards."""
    tripped: str = ""
    """Not empty: a number was not finite; the weights are not those of a trained version."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A version as the publisher gets it; None parts on ranks other than 0."""

    ready: VersionReady | None
    buckets: tuple[BucketReady, ...]
    export_s: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint, complete on disk."""

    step: int
    folder: str
    save_s: float


@dataclass(frozen=True, slots=True)
class CheckBatch(Work):
    """Gives a `BatchVerdict`. The only work that runs beside training."""

    batch: Batch
    rules: DoorRules


@dataclass(frozen=True, slots=True)
class TrainBatch(Work):
    """Gives a `StepOutcome`. Collective: every rank does it on its own part."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class ExportVersion(Work):
    """Gives an `Exported`. Collective.

    Attributes:
        published: what engines serve meanwhile, which may have to be sent once more.
    """

    version: int
    final: bool
    published: int | None = None


@dataclass(frozen=True, slots=True)
class SendBuckets(Work):
    """Broadcast a version that was exported; the fields are those of `SendVersion`. Gives None."""

    version: int
    group: str
    world_size: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ReadBack(Work):
    """Gives every `BucketReady` of a version that lies on the GPU, with its bytes."""

    version: int


@dataclass(frozen=True, slots=True)
class KeepMemory(Work):
    """Let go of versions on the GPU; the fields are those of `KeepVersions`. Gives None."""

    versions: tuple[int, ...]
    announced: int


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Work):
    """Gives a `Saved`. Collective."""

    step: int
    trained_group_ids: tuple[str, ...]
    trained_before: int = 0
    """Groups trained whose names only the ledger of the rollout actor has."""


@dataclass(frozen=True, slots=True)
class ScoreTokens(Work):
    """Gives a tuple of float32 [T] bulks. Collective."""

    rows: tuple[Bulk, ...]
    temperature: float
