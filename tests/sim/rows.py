"""Tiny trajectories and weights that carry their own truth."""

from __future__ import annotations

from functools import cache
from struct import pack

from milepost.messages.bulk import Bulk
from milepost.messages.engine import Generated, TensorSpec
from milepost.messages.publisher import ProbeTurn
from milepost.messages.shared import FinishReason, SamplingParams, Status, VersionSpan
from milepost.messages.trajectory import Certificate, Trajectory, TurnBoundary

CERTIFICATE = Certificate(
    tokenizer_hash="t", template_hash="c", family="sim", sampling=SamplingParams()
)
SHAPES = tuple(TensorSpec(name=f"w{index}", dtype="float32", shape=(1,)) for index in range(2))
"""What a version is made of: two tensors, each in a bucket of its own."""


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
    """Every tensor of a version: its number."""
    return Bulk("float32", (1,), pack("<f", float(version)))


@cache
def probe_of(version: int) -> Bulk:
    """Log-probs of the probe row under a version."""
    return Bulk("float32", (2,), pack("<ff", 0.0, -float(version)))


PROBE_ROW = Bulk("int32", (2,), bytes(8))


def probe_turn(version: int) -> ProbeTurn:
    """A prompt of one token; the one token that may follow says which version sampled it."""
    return ProbeTurn(messages=[], token_ids=ids(1), logprobs=turn_logprobs(version))


@cache
def turn_logprobs(version: int) -> Bulk:
    """Of a reply of one token under a version."""
    return Bulk("float32", (1,), pack("<f", -float(version)))


def probe_row(trajectory_id: str, engine: str, generated: Generated, *, prompt: int) -> Trajectory:
    """What a session delivers of the canary's turn."""
    length = prompt + 1
    (span,) = generated.spans
    turn = TurnBoundary(
        prompt_end=prompt,
        end=length,
        finish_reason=FinishReason.LENGTH,
        prefix_hash="",
        engine=engine,
        weights=generated.weights,
    )
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id="canary",
        prompt_id="canary",
        status=Status.TRUNCATED,
        reward=0.0,
        token_ids=ids(length),
        loss_mask=_mask(length),
        logprobs=Bulk("float32", (length,), bytes(4 * prompt) + bytes(generated.logprobs.data)),
        provenance=_provenance(length),
        spans=(VersionSpan(start=prompt, end=length, version=span.version),),
        turns=(turn,),
        certificate=CERTIFICATE,
        num_sampled_tokens=1,
    )


def digest_of(version: int) -> str:
    """As the trainer tells it."""
    return f"digest of {version}"


def check_weights(engine: str, generated: Generated) -> None:
    """A reply says whose weights stand behind it, as a session and the trainer's door want it."""
    for used in generated.weights:
        assert used.digest == digest_of(used.version), f"{engine} answered with {used}"
    told = [used.version for used in generated.weights]
    assert told == [span.version for span in generated.spans], f"{engine}: {told}"
