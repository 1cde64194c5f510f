"""A reply as an engine sampled it, and the end of it that a row may have gone on without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from milepost.messages.shared import FinishReason, VersionSpan, WeightsUsed
    from milepost.messages.trajectory import TurnBoundary


class SampledReply(Struct, frozen=True, eq=False):
    """What an engine sampled, checked."""

    token_ids: NDArray[np.int32]
    """[N], the stop token included."""
    logprobs: NDArray[np.float32]
    """[N], nats."""
    spans: tuple[VersionSpan, ...]
    """Cover [0, N)."""
    finish_reason: FinishReason
    engine: str
    incarnation: int = 0
    """Of the engine."""
    adapter: str = ""
    """That it was sampled under; empty: the policy itself."""
    cached_tokens: int = 0
    """Of the prompt, known to the engine before."""
    weights: tuple[WeightsUsed, ...] = ()
    """Of each version of the spans."""
    routes: NDArray[np.uint8 | np.int16] | None = None
    """[tokens, layers, experts per token] of what went through the model for this reply and has no
    routes yet: the last token of what it continues, the prompt, the reply but for its last token.
    None when routes are not replayed."""


class ReplyEnd(Struct, frozen=True, eq=False):
    """The end of a reply that the row went on without, and that stands again when it is the last.

    The template writes something else there once a message follows: the model sampled it still.
    """

    turn: TurnBoundary
    """Of the whole reply."""
    token_ids: NDArray[np.int32]
    """[N]; `logprobs` and `routes` are theirs."""
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    """Of the row, the first perhaps from an earlier place on."""
    routes: NDArray[np.uint8 | np.int16] | None
