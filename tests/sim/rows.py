"""Tiny trajectories and weights that carry their own truth."""

from __future__ import annotations

from functools import cache
from struct import pack

from milepost.messages.bulk import Bulk
from milepost.messages.shared import SamplingParams, Status, VersionSpan
from milepost.messages.trajectory import Certificate, Trajectory

CERTIFICATE = Certificate(
    tokenizer_hash="t", template_hash="c", family="sim", sampling=SamplingParams()
)


def trajectory(
    trajectory_id: str,
    *,
    spans: tuple[VersionSpan, ...],
    reward: float,
    status: Status = Status.COMPLETED,
    metrics: dict[str, float] | None = None,
) -> Trajectory:
    """A row of one prompt token and then sampled ones, as many as the spans cover."""
    length = max((span.end for span in spans), default=1)
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id=trajectory_id.rpartition(".")[0],
        prompt_id="p",
        status=status,
        reward=reward,
        token_ids=ids(length),
        loss_mask=_mask(length),
        logprobs=logprobs(length),
        provenance=_provenance(length),
        spans=spans,
        turns=(),
        certificate=CERTIFICATE,
        num_sampled_tokens=length - 1,
        metrics=metrics or {},
    )


@cache
def ids(length: int) -> Bulk:
    """Token ids, int32 [length]."""
    return Bulk("int32", (length,), bytes(4 * length))


@cache
def logprobs(length: int) -> Bulk:
    """Log-probs, float32 [length]."""
    return Bulk("float32", (length,), bytes(4 * length))


@cache
def _mask(length: int) -> Bulk:
    return Bulk("uint8", (length,), b"\0" + b"\1" * (length - 1))


@cache
def _provenance(length: int) -> Bulk:
    return Bulk("uint8", (length,), b"\0" + b"\3" * (length - 1))


@cache
def weights_of(version: int) -> Bulk:
    """The one tensor of a version: its number."""
    return Bulk("float32", (1,), pack("<f", float(version)))


@cache
def probe_of(version: int) -> Bulk:
    """Log-probs of the probe row under a version."""
    return Bulk("float32", (2,), pack("<ff", 0.0, -float(version)))


PROBE_ROW = Bulk("int32", (2,), bytes(8))
