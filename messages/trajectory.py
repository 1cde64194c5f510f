"""A finished trajectory: its token row, what proves where each token came from, its reward."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from milepost.messages.bulk import Bulk
from milepost.messages.shared import (
    ChatMessage,
    FinishReason,
    Finite,
    NonNegative,
    Positive,
    SamplingParams,
    Status,
    VersionSpan,
    WeightsUsed,
)


class Provenance(IntEnum):
    """Who produced a token. Only `SAMPLED` tokens carry loss."""

    TEMPLATE = 0
    INPUT = 1
    """System and user text."""
    TOOL = 2
    SAMPLED = 3
    RECORDED = 4
    """Assistant text of an imported conversation (supervised training)."""


REPETITIVE: Final = "repetitive"
"""Key in `Trajectory.metadata` of a sampled row: whether what was sampled repeats itself."""

NON_GENERATION: Final = "non_generation_s"
"""Key in `Trajectory.metadata` of a sampled row: seconds from each reply of its session to the next
request, in all; while several turns are in flight, from the last one's reply."""
ERROR_CATEGORY: Final = "error_cat/"
"""Head of a metric that an agent reports: the category of what went wrong, with the value 1."""


class TurnBoundary(Struct, frozen=True, kw_only=True):
    """One generation inside the row: prompt is [0, prompt_end), reply is [prompt_end, end)."""

    prompt_end: NonNegative
    end: NonNegative
    finish_reason: FinishReason
    prefix_hash: str
    """xxh3-128 hex of the little-endian int32 token ids [0, end)."""
    engine: str
    """Name of the engine that generated it."""
    trained: bool = True
    """False: the reply carries no loss in this row; another row of its trajectory trains it."""
    incarnation: NonNegative = 0
    """Of that engine: how often it had started before."""
    adapter: str = ""
    """That the reply was sampled under; such a reply is nobody's to train."""
    cached_tokens: NonNegative = 0
    """Tokens of the prompt whose keys and values the engine had already."""
    weights: tuple[WeightsUsed, ...] = ()
    """What that engine says of each version that sampled tokens of this reply."""
    routes_hash: str = ""
    """xxh3-128 hex of the routes of the tokens from the last one of the turn before to the last but
    one of this, [end before - 1, end - 1); empty when routes are not replayed."""


class Certificate(Struct, frozen=True, kw_only=True):
    """What the trainer's door re-derives before it lets a trajectory in (contracts C1 to C4)."""

    tokenizer_hash: str
    template_hash: str
    family: str
    sampling: SamplingParams
    canonical_mismatch: str | None = None
    """First difference between the row and a canonical re-rendering; a diagnostic, no verdict."""
    mismatch_kinds: tuple[str, ...] = ()
    """Kinds of all such differences."""
    conversation_hash: str = ""
    """xxh3-128 hex of the row's `conversation`; empty when the session did not write it down."""
    seal: str = ""
    """xxh3-128 hex over everything that the session said of the row, `milepost.actors.seal`."""


class Conversation(Struct, frozen=True, kw_only=True):
    """The messages that a row renders, the reply of its last turn with them."""

    messages: list[ChatMessage]
    tools: list[dict[str, Any]] = []


class Trajectory(Struct, frozen=True, kw_only=True):
    """One row of a trajectory, T tokens long. Arrays are row-major, little-endian.

    Most trajectories have one row. A session that branched has several: they share name, verdict
    and reward, count once in the statistics of their group, and train each reply once.
    """

    trajectory_id: str
    group_id: str
    prompt_id: str
    status: Status
    reward: Finite
    token_ids: Bulk
    """int32 [T]"""
    loss_mask: Bulk
    """uint8 [T], 1 exactly where a token is trained."""
    logprobs: Bulk
    """float32 [T], nats; 0 where a token was not sampled."""
    provenance: Bulk
    """uint8 [T] of `Provenance`."""
    spans: tuple[VersionSpan, ...]
    """Ordered, disjoint; together they cover every sampled token of the row."""
    turns: tuple[TurnBoundary, ...]
    certificate: Certificate
    routes: Bulk | None = None
    """uint8 (int16 beyond 256 experts) [T - 1, mixture layers, experts per token], when routes are
    replayed: the experts that computed each token but the last, as the engine chose them."""
    group_rewards: tuple[Finite, ...] = ()
    """Rewards of all members of the group; the buffer fills it in when the group is complete."""
    group_size: Positive = 1
    num_sampled_tokens: NonNegative = 0
    row: NonNegative = 0
    """Number of this row in its trajectory."""
    num_rows: Positive = 1
    """Of the trajectory."""
    trajectory_loss_tokens: NonNegative = 0
    """Tokens with loss in all rows of the trajectory; 0 when it has one row."""
    metrics: dict[str, float] = {}
    """Numbers the agent reported (`solved`, `turns`, ...)."""
    metadata: dict[str, Any] = {}
    conversation: Bulk | None = None
    """uint8 [N], JSON of `Conversation` in UTF-8: what the tokens say. From session to buffer only,
    which keeps it in the archive of the run."""
