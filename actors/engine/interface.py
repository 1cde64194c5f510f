"""Between the engine actor and whatever computes: what is ordered, what comes back.

`core.py` decides and knows only these types; `run.py` wires a core to one `Backend`. Each kind of
engine is one backend, in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from milepost.actors.effects import Event, Work
from milepost.messages.bulk import Bulk
from milepost.messages.engine import DeviceMemory, PauseMode, TensorSpec
from milepost.messages.shared import FinishReason, SamplingParams, VersionSpan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OUTCOMES = "outcomes"
"""Key of the `WorkDone` whose result is a tuple of `Outcome`; an error in it ends the actor."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a backend found out while starting.

    Attributes:
        manifest: every tensor of a version, by Hugging Face name.
        vocab_size: token ids are below it.
        context_tokens: most tokens of one row, prompt and reply together.
        returns_routes: the experts of each token are kept, and told to who asks.
        gpu: UUID of the GPU that holds the weights, if handles of its memory are opened; or empty.
        adapters: names that a request may sample under.
        details: for people: device, dtype, slots, ...
    """

    manifest: tuple[TensorSpec, ...]
    vocab_size: int
    context_tokens: int
    returns_routes: bool = False
    gpu: str = ""
    adapters: tuple[str, ...] = ()
    details: dict[str, object] = field(default_factory=dict)


# ---- orders: at once, in order, without an answer of their own ------------------------------


@dataclass(frozen=True, slots=True)
class Order(Work):
    """Handed to the backend as it is, before the next effect. No `WorkDone` follows."""


@dataclass(frozen=True, slots=True)
class GenerateOrder(Order):
    """Sample a reply; `key` is the request id. Ends in one `Finished` or `Rejected`.

    Attributes:
        session_id: whose prefix this is.
        token_ids: int32 [P].
        sampling: how.
        stream: post what is sampled meanwhile as `Progress`.
        rank: modulo the number of data-parallel ranks, the one that holds the prefix.
        routes_start: first token whose routes are wanted, below P; None: no routes are.
        adapter: one of `EngineFacts.adapters`, on top of the version that serves; empty: none.
    """

    session_id: str
    token_ids: NDArray[np.int32]
    sampling: SamplingParams
    stream: bool = False
    rank: int = 0
    routes_start: int | None = None
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class ScoreOrder(Order):
    """Log-probs of rows, all under one version. Ends in one `ScoreFinished` or `Rejected`.

    Attributes:
        rows: int32 [T] each.
        temperature: of the distribution.
        use_cache: take keys and values of known prefixes from the cache, and keep the row's.
    """

    rows: tuple[NDArray[np.int32], ...]
    temperature: float
    use_cache: bool


@dataclass(frozen=True, slots=True)
class AbortOrder(Order):
    """End these requests with what they have. Unknown ids are ignored: they have ended already."""

    request_ids: tuple[str, ...] = ()
    session_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetOrder(Order):
    """The prefixes of these sessions may go first."""

    session_ids: tuple[str, ...]


# ---- works: long, ended by `WorkDone` -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenEpoch(Work):
    """Make room for a version beside the one that serves; what was staged before is dropped.

    Attributes:
        randomize: fill the room with random bytes.
    """

    version: int
    tensors: tuple[TensorSpec, ...]
    randomize: bool = False


@dataclass(frozen=True, slots=True)
class StageBucket(Work):
    """Copy tensors into the open epoch."""

    names: tuple[str, ...]
    tensors: tuple[Bulk, ...]


@dataclass(frozen=True, slots=True)
class CopyWeights(Work):
    """Copy tensors into the open epoch, out of the trainer's memory on this GPU.

    Attributes:
        offsets: where each begins there, in bytes.
    """

    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    memory: DeviceMemory


@dataclass(frozen=True, slots=True)
class PullWeights(Work):
    """Bring this host's copy to the version and stage all of it.

    Attributes:
        root: folder of all versions.
    """

    version: int
    root: str


@dataclass(frozen=True, slots=True)
class ReceiveWeights(Work):
    """Take part in a broadcast and stage every bucket; fields as of `ReceiveVersion`.

    Attributes:
        buckets: what each broadcast brings, in order.
    """

    rendezvous: str
    group: str
    rank: int
    world_size: int
    deadline_s: float
    buckets: tuple[tuple[TensorSpec, ...], ...]


@dataclass(frozen=True, slots=True)
class ReadDigests(Work):
    """xxh3-128 hex of these tensors, read back from what serves; the result is a tuple of them."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchWeights(Work):
    """Check the digest of what was staged, then serve it. The result is `Switched`."""

    version: int
    mode: PauseMode
    digest: str


@dataclass(frozen=True, slots=True)
class DropEpoch(Work):
    """Forget what was staged."""


@dataclass(frozen=True, slots=True)
class Switched:
    """The new version serves.

    Attributes:
        pause_s: how long no token was computed.
        num_in_flight: requests that lived through the switch.
        kept: why what was staged could not be let go; empty when it was. `OpenEpoch` does it then.
    """

    pause_s: float
    num_in_flight: int
    kept: str = ""


# ---- outcomes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finished:
    """A reply of N tokens; the fields are those of the message `Generated`."""

    key: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    cached_tokens: int
    kv_versions: tuple[int, ...]
    """For each span, as in `WeightsUsed.kv_version`."""
    top_token_ids: NDArray[np.int32] | None = None
    top_logprobs: NDArray[np.float32] | None = None
    routes: NDArray[np.uint8 | np.int16] | None = None
    """[P + N - 1 - routes_start, mixture layers, experts per token], when they were asked for. A
    token's are those of the pass that the token after it was sampled from, whatever weights came
    later. None of a reply that was aborted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Next tokens of a streamed reply, int32 [N]; in order, none twice. It goes on."""

    key: str
    token_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ScoreFinished:
    """float32 [T] log-probs of each row; position 0 is 0."""

    key: str
    logprobs: tuple[NDArray[np.float32], ...]
    version: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The order cannot be carried out; `reason` names why."""

    key: str
    reason: str


Outcome: TypeAlias = Finished | Progress | ScoreFinished | Rejected


class Backend(Protocol):
    """One kind of engine. Its own threads or processes compute; none of these calls blocks long."""

    @property
    def facts(self) -> EngineFacts:
        """Known once the backend is constructed."""
        ...

    def start(self, post: Callable[[Event], None]) -> None:
        """Begin to compute. `post` takes events from any thread: `WorkDone(OUTCOMES, ...)`."""
        ...

    def order(self, order: Order) -> None:
        """Take an order; called on the event loop, returns at once."""
        ...

    async def perform(self, work: Work) -> object:
        """Carry out one of the works above, in the order of the calls.

        Raises:
            EpochError: the epoch cannot go on; the old version serves.
        """
        ...

    def statistics(self) -> dict[str, object]:
        """Numbers for the heartbeat; callable at any time from the event loop."""
        ...

    def close(self) -> None:
        """Stop computing and give everything back."""
        ...


class EpochError(RuntimeError):
    """What was staged cannot be served; the text names why."""
