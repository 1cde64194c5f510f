"""Pieces that several messages are made of: sampling, versions, chat, limits, statuses."""

from __future__ import annotations

from enum import StrEnum
from sys import float_info
from typing import Annotated, Any, Final, TypeAlias, dataclass_transform

from msgspec import Meta, Struct, field

NonNegative: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Finite: TypeAlias = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
"""A number that is neither NaN nor infinite: those are refused by name on arrival."""
VERDICT_MAX: Final = 1e30
"""Largest magnitude of a reward, or of a metric beside it. Training is in float32, which ends at
3.4e38: an advantage of this size still fits it when it is summed over a hundred million tokens."""
ChatMessage: TypeAlias = dict[str, Any]
"""One chat message in the OpenAI shape (role, content, tool_calls, ...), JSON values only."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Message(Struct, frozen=True, kw_only=True):
    """Base of everything that travels. A subclass's name is its type on the wire."""


class Status(StrEnum):
    """How a trajectory ended. Only `COMPLETED` and `TRUNCATED` carry a reward."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    """A limit of the episode (turns, seconds, tokens) ended it; the tokens are the policy's."""
    FAILED = "failed"
    """User code or infrastructure failed; never turned into a reward."""
    ABORTED = "aborted"
    """Stopped by us: sibling group dropped, drain, shutdown."""


class FinishReason(StrEnum):
    """Why one generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Purpose(StrEnum):
    """What an episode is for."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PROBE = "probe"
    """A canary: one token from the engines that training samples with, and nobody trains it."""


class SamplingParams(Struct, frozen=True, kw_only=True):
    """The distribution that tokens are drawn from.

    Log-probs recorded beside a token are of exactly this distribution: after temperature,
    and after renormalising over what top-k, top-p and min-p leave.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    """0 is greedy: the most likely token, recorded with its log-prob at temperature 1."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    """0 means off."""
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    tokens_max: Positive = 256
    """Most tokens of one reply."""
    stop_token_ids: tuple[int, ...] = ()
    """A sampled stop token ends the reply and is part of it."""
    top_logprobs: Annotated[int, Meta(ge=0, le=64)] = 0
    seed: NonNegative = 0
    """Same seed, same position, same distribution: same token, whatever else is in the batch."""


class EpisodeLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one episode; reaching one ends it as `truncated`, with the bound's name."""

    turns_max: Positive = 30
    seconds_max: Seconds = 3600.0
    reply_tokens_max: Positive = 8192
    tokens_max: Positive = 65536
    """Prompt, tool and sampled tokens together."""


class VersionSpan(Struct, frozen=True, kw_only=True, array_like=True):
    """Tokens [start, end) of a row were sampled under `version`."""

    start: NonNegative
    end: NonNegative
    version: NonNegative


class WeightsUsed(Struct, frozen=True, kw_only=True, array_like=True):
    """What an engine says of one weight version that sampled tokens of a reply."""

    version: NonNegative
    digest: str
    """xxh3-128 hex over names and bytes of every tensor, as in `ActivateEpoch`."""
    kv_version: NonNegative
    """Oldest version that computed keys or values which those tokens attended to: the same one
    where caches are computed anew, an older one where replies go on in place."""


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of one reply."""

    prompt_tokens: NonNegative
    completion_tokens: NonNegative
    cached_tokens: NonNegative = 0
    """Prompt tokens whose keys and values were already in the cache."""


class Prompt(Struct, frozen=True, kw_only=True):
    """One training or evaluation prompt, as read from the data source."""

    prompt_id: str
    messages: list[ChatMessage]
    label: Any = None
    """What the reward compares with; any JSON value."""
    metadata: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    """Tool definitions in the OpenAI shape."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """One parsed call."""

    call_id: str
    name: str
    arguments: str
    """JSON text exactly as sampled."""
