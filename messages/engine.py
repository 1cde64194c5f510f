"""What an engine actor can be asked."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from milepost.messages.bulk import Bulk
from milepost.messages.shared import (
    FinishReason,
    Message,
    NonNegative,
    Positive,
    SamplingParams,
    Seconds,
    VersionSpan,
    WeightsUsed,
)


class PauseMode(StrEnum):
    """What happens to requests in flight while weights change."""

    RETRACT = "retract"
    """Keep the tokens, drop keys and values, prefill again under the new version."""
    IN_PLACE = "in_place"
    """Keep tokens, keys and values, and go on; spans show the change of version."""


class Generate(Message, kw_only=True):
    """Sample a reply to a token row; answered with `Generated`."""

    request_id: str
    session_id: str
    """Requests of one session share their prefix cache."""
    token_ids: Bulk
    """int32 [P], the whole prompt."""
    sampling: SamplingParams
    version_min: NonNegative = 0
    """Refuse (GenerateRefused) when the engine serves an older version."""
    stream: bool = False
    """Tell the asker what is sampled meanwhile, with `GeneratedPart`. The answer stays whole."""
    rank: NonNegative = 0
    """Modulo the number of data-parallel ranks, the one that holds the session's prefix."""
    routes_start: NonNegative | None = None
    """First token of the row whose routes are wanted, at most P - 1; None: no routes are."""
    adapter: str = ""
    """Name of the adapter to sample under; empty: the policy itself. Such tokens are not the
    policy's: no session that is trained asks for them."""


class Generated(Message, kw_only=True):
    """N sampled tokens."""

    request_id: str
    token_ids: Bulk
    """int32 [N], the stop token included."""
    logprobs: Bulk
    """float32 [N], nats, of the distribution that was sampled from."""
    spans: tuple[VersionSpan, ...]
    """Over [0, N) of the reply."""
    finish_reason: FinishReason
    cached_tokens: NonNegative
    top_token_ids: Bulk | None = None
    """int32 [N, K]"""
    top_logprobs: Bulk | None = None
    """float32 [N, K]"""
    routes: Bulk | None = None
    """uint8 or int16 [P + N - 1 - routes_start, mixture layers, experts per token]: the experts
    that each token of [routes_start, P + N - 1) went through when what follows it was sampled."""
    incarnation: NonNegative = 0
    """Of the engine: how often it had started before."""
    weights: tuple[WeightsUsed, ...] = ()
    """Of each version of the spans, in the order of their first tokens."""


class GenerateRefused(Message, kw_only=True):
    """Nothing was sampled: the request itself is at fault, or the engine cannot serve it."""

    request_id: str
    reason: str
    retry: bool = False
    """True: the engine cannot serve it now (no version yet, queue full); later it may."""


class AbortRequests(Message, kw_only=True):
    """Stop these requests; each is answered with what it has so far (finish reason abort)."""

    request_ids: tuple[str, ...] = ()
    session_ids: tuple[str, ...] = ()


class ForgetSessions(Message, kw_only=True):
    """These sessions are over: their cached prefixes may go first."""

    session_ids: tuple[str, ...]


class Score(Message, kw_only=True):
    """Log-probs of given rows under the version being served; answered with `Scored`."""

    rows: tuple[Bulk, ...]
    """int32 [T] each"""
    temperature: float = 1.0
    use_cache: bool = False
    """Read the prefix cache, as a generation would."""


class Scored(Message, kw_only=True):
    """Answer to `Score`."""

    logprobs: tuple[Bulk, ...]
    """float32 [T] each; position 0 has no prefix and is 0."""
    version: NonNegative


class TensorSpec(Struct, frozen=True, kw_only=True):
    """One tensor of an epoch, by its Hugging Face name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """An allocation on a GPU that other processes may open, by its CUDA IPC handle."""

    device: str
    """UUID of the GPU."""
    handle: bytes
    """`cudaIpcMemHandle_t`, 64 bytes; a fact of the driver, the same for the allocation's life."""
    num_bytes: Positive


class PrepareEpoch(Message, kw_only=True):
    """An epoch begins: these tensors will come in `num_buckets` buckets. `EpochAnswer`."""

    version: NonNegative
    tensors: tuple[TensorSpec, ...]
    num_buckets: Positive
    """Messages of MOVE that follow."""
    randomize: bool = False
    """Fill the room with random bytes first: what never comes cannot look right afterwards."""


class WeightBucket(Message, kw_only=True):
    """Some tensors of the epoch, whole. Kept apart from the serving weights. `EpochAnswer`."""

    version: NonNegative
    index: NonNegative
    names: tuple[str, ...]
    tensors: tuple[Bulk, ...]


class CopyBucket(Message, kw_only=True):
    """MOVE within one GPU: copy these tensors out of the trainer's memory. `EpochAnswer`."""

    version: NonNegative
    index: NonNegative
    names: tuple[str, ...]
    offsets: tuple[NonNegative, ...]
    """Where each tensor begins, in bytes; row-major, with the dtype and shape announced."""
    memory: DeviceMemory
    """Holds still until every engine has answered, or left the epoch."""


class PullVersion(Message, kw_only=True):
    """MOVE over a disk: patch this host's copy to the version and stage it whole. `EpochAnswer`."""

    version: NonNegative
    root: str
    """Folder of all versions, as this host sees it."""


class ReceiveVersion(Message, kw_only=True):
    """MOVE by broadcast: meet the sender and the others, stage what it sends. `EpochAnswer`."""

    version: NonNegative
    rendezvous: str
    """As in `VersionReady`."""
    group: str
    """Name of the meeting; members of another one never answer each other."""
    rank: Positive
    """Of this engine; the sender is rank 0."""
    world_size: Positive
    deadline_s: Seconds
    """A peer that is silent for longer is gone."""
    buckets: tuple[tuple[str, ...], ...]
    """Names of each bucket, in the order of the broadcasts."""


class ActivateEpoch(Message, kw_only=True):
    """Everything has arrived: switch. Answered with `EpochConfirmed` or `EpochAnswer` (refused)."""

    version: NonNegative
    mode: PauseMode
    digest: str
    """xxh3-128 hex over names and bytes of every tensor, in the order of `PrepareEpoch`."""


class AbortEpoch(Message, kw_only=True):
    """Forget the staged tensors; the old version goes on serving. `EpochAnswer`."""

    version: NonNegative
    reason: str


class EpochAnswer(Message, kw_only=True):
    """Answer to PREPARE, MOVE and ABORT."""

    version: NonNegative
    ok: bool
    reason: str = ""
    device: str = ""
    """PREPARE: UUID of the GPU that holds the engine's weights, if it opens handles of its memory;
    empty: bytes only."""


class EpochConfirmed(Message, kw_only=True):
    """This engine serves `version`, whole."""

    version: NonNegative
    digest: str
    pause_s: float
    """How long no token was generated."""
    num_in_flight: NonNegative


class DigestTensors(Message, kw_only=True):
    """Read these tensors back from the weights that serve; answered with `TensorDigests`."""

    names: tuple[str, ...]


class TensorDigests(Message, kw_only=True):
    """xxh3-128 hex over the bytes of each tensor asked for."""

    version: NonNegative
    digests: tuple[str, ...]


EngineInbox: TypeAlias = (
    Generate
    | AbortRequests
    | ForgetSessions
    | Score
    | PrepareEpoch
    | WeightBucket
    | CopyBucket
    | PullVersion
    | ReceiveVersion
    | ActivateEpoch
    | AbortEpoch
    | DigestTensors
)
