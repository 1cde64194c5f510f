"""The trainer's door: what a trajectory must prove before it is trained.

Everything is re-derived from the row itself; nothing is believed because a field says so. A group
with one bad member is refused whole, and the reason names the contract that failed, and where. What
no contract speaks of, the seal does: no field of a row can change on its way without being found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from milepost.actors.arrays import from_bulk
from milepost.actors.seal import seal_of
from milepost.actors.trainer.lineage import VERSIONS, weights_faults
from milepost.actors.trainer.routes import route_faults
from milepost.actors.trainer.works import BatchVerdict, DoorRules, Refusal
from milepost.messages.buffer import Batch
from milepost.messages.bulk import Bulk
from milepost.messages.shared import VERDICT_MAX, Status
from milepost.messages.trajectory import Provenance, Trajectory

TOKENS = "C1 same tokens"
LOGPROBS = "C3 same log-probs"
REWARD = "reward"
GROUP = "group"
SEAL = "seal"

LOGPROB_MAX = 1e-3
"""A log-prob is at most 0; rounding of a probability of 1 may lift it by a hair."""

DTYPES = {"token_ids": "int32", "loss_mask": "uint8", "logprobs": "float32", "provenance": "uint8"}


@dataclass(frozen=True, slots=True)
class Arrays:
    """The four arrays of one row, [T] each, views of the message's own buffers."""

    token_ids: NDArray[Any]
    loss_mask: NDArray[Any]
    logprobs: NDArray[Any]
    provenance: NDArray[Any]


def check_batch(batch: Batch, rules: DoorRules) -> BatchVerdict:
    """Check every trajectory of one rank's part of a batch.

    Returns:
        One refusal for each bad group (the first fault found), and for each good group the oldest
        version any of its trained tokens was sampled under.
    """
    refusals: dict[str, Refusal] = {}
    oldest: dict[str, int] = {}
    rewards: dict[str, tuple[float, ...]] = {}
    for trajectory in batch.trajectories:
        group = trajectory.group_id
        fault = next(faults(trajectory, rules), None)
        if rewards.setdefault(group, trajectory.group_rewards) != trajectory.group_rewards:
            fault = f"{GROUP}: rewards {trajectory.group_rewards}, a sibling has {rewards[group]}"
        if fault is not None and group not in refusals:
            reason = f"{fault}: trajectory {trajectory.trajectory_id}"
            refusals[group] = Refusal(group, reason)
        elif fault is None and (versions := trained_versions(trajectory)):
            version = min(versions)
            oldest[group] = min(version, oldest.get(group, version))
    good = {group: version for group, version in oldest.items() if group not in refusals}
    return BatchVerdict(tuple(refusals.values()), good)


def faults(trajectory: Trajectory, rules: DoorRules) -> Iterator[str]:
    """Every fault of one trajectory, as `contract: what is wrong`. A good one has none."""
    yield from _verdict_faults(trajectory)
    shape_faults = list(_shape_faults(trajectory))
    yield from shape_faults
    if shape_faults:
        return
    arrays = Arrays(
        from_bulk(trajectory.token_ids),
        from_bulk(trajectory.loss_mask),
        from_bulk(trajectory.logprobs),
        from_bulk(trajectory.provenance),
    )
    yield from _token_faults(trajectory, arrays, rules)
    yield from _reply_faults(trajectory, arrays, rules)
    yield from _hash_faults(trajectory, arrays)
    if not rules.sft:
        yield from _logprob_faults(trajectory, arrays)
        yield from _version_faults(trajectory, arrays, rules)
        yield from weights_faults(trajectory, rules)
        yield from route_faults(trajectory, rules.routes)
    yield from _row_faults(trajectory, arrays)
    sealed = trajectory.certificate.seal
    if (found := seal_of(trajectory)) != sealed:
        yield f"{SEAL}: the row seals to {found}, its certificate says {sealed or 'nothing'}"
    yield from _conversation_faults(trajectory)


def _conversation_faults(trajectory: Trajectory) -> Iterator[str]:
    """The buffer keeps conversations to itself; where one is, it is the one under the seal."""
    text = trajectory.conversation
    if text is None:
        return
    if text.dtype != "uint8" or text.shape != (text.nbytes,):
        yield f"{SEAL}: the conversation is {text.dtype} {text.shape}, not uint8 ({text.nbytes},)"
    said = trajectory.certificate.conversation_hash or "nothing"
    found = xxhash.xxh3_128_hexdigest(text.data)
    if found != said:
        yield f"{SEAL}: the conversation hashes to {found}, its certificate says {said}"


def trained_versions(trajectory: Trajectory) -> list[int]:
    """Versions of spans in which something is trained."""
    mask = bytes(trajectory.loss_mask.data)
    return [span.version for span in trajectory.spans if mask.count(1, span.start, span.end)]


def _verdict_faults(trajectory: Trajectory) -> Iterator[str]:
    rewards = trajectory.group_rewards
    if trajectory.status not in (Status.COMPLETED, Status.TRUNCATED):
        yield f"{REWARD}: status is {trajectory.status.value}, which carries none"
    # `not <=`, since every comparison with NaN is false. A larger one would end the run from inside
    # the loss, where nobody knows whose it was; agents are held to the same bound, but rows of
    # other programs arrive here alone.
    if not abs(trajectory.reward) <= VERDICT_MAX:
        yield f"{REWARD}: it is {trajectory.reward}"
    if not all(abs(reward) <= VERDICT_MAX for reward in rewards):
        yield f"{REWARD}: group rewards are {rewards}"
    if len(rewards) != trajectory.group_size:
        yield f"{GROUP}: {len(rewards)} rewards for {trajectory.group_size} members"
    elif trajectory.reward not in rewards:
        yield f"{GROUP}: reward {trajectory.reward} is not among the group's {rewards}"


def _shape_faults(trajectory: Trajectory) -> Iterator[str]:
    length = trajectory.token_ids.shape[0] if trajectory.token_ids.shape else 0
    if length < 2:
        yield f"{TOKENS}: a row of {length} tokens predicts nothing"
    for name, dtype in DTYPES.items():
        bulk: Bulk = getattr(trajectory, name)
        if bulk.dtype != dtype or bulk.shape != (length,):
            yield f"{TOKENS}: {name} is {bulk.dtype} {bulk.shape}, not {dtype} ({length},)"


def _token_faults(trajectory: Trajectory, arrays: Arrays, rules: DoorRules) -> Iterator[str]:
    ids, mask, provenance = arrays.token_ids, arrays.loss_mask, arrays.provenance
    hashed = trajectory.certificate.tokenizer_hash
    model = rules.model
    if model.tokenizer_hash not in ("", hashed):
        yield f"{TOKENS}: tokenizer {hashed}, the model's is {model.tokenizer_hash}"
    hashed = trajectory.certificate.template_hash
    if model.template_hash not in ("", hashed):
        yield f"{TOKENS}: chat template {hashed}, the model's is {model.template_hash}"
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= model.vocabulary:
        token = lowest if lowest < 0 else highest
        yield f"{TOKENS}: token id {token} is outside the vocabulary of {model.vocabulary}"
    if int(mask.max()) > 1:
        yield f"{TOKENS}: loss mask holds {int(mask.max())}, only 0 and 1 mean anything"
    if mask[0]:
        yield f"{TOKENS}: the first token has loss, but nothing predicts it"
    if int(provenance.max()) > max(Provenance):
        where = int(provenance.argmax())
        yield f"{TOKENS}: position {where} has provenance {int(provenance[where])}, there is none"


def _reply_faults(trajectory: Trajectory, arrays: Arrays, rules: DoorRules) -> Iterator[str]:
    """Replies, provenance and mask must tell the same story, token by token."""
    mask, provenance = arrays.loss_mask, arrays.provenance
    kind = Provenance.RECORDED if rules.sft else Provenance.SAMPLED
    strangers = np.flatnonzero((mask != 0) & (provenance != kind))
    if len(strangers):
        where = int(strangers[0])
        yield (
            f"{TOKENS}: position {where} has loss, but its provenance is "
            f"{int(provenance[where])}, not {kind.value} ({kind.name.lower()})"
        )
    replies = np.zeros(len(mask), dtype=bool)
    trained = np.zeros(len(mask), dtype=bool)
    for turn in trajectory.turns:
        replies[turn.prompt_end : turn.end] = True
        trained[turn.prompt_end : turn.end] = turn.trained
    ours = (provenance == Provenance.SAMPLED) | (provenance == Provenance.RECORDED)
    if len(homeless := np.flatnonzero(ours & ~replies)):
        yield f"{TOKENS}: position {int(homeless[0])} was sampled, but in no turn's reply"
    if len(foreign := np.flatnonzero(replies & (provenance != kind))):
        where = int(foreign[0])
        told = f"its provenance is {int(provenance[where])}, not {kind.value}"
        yield f"{TOKENS}: position {where} is in a reply, but {told} ({kind.name.lower()})"
    if len(holes := np.flatnonzero((mask != 0) != trained)):
        where = int(holes[0])
        told = "no turn trains it" if mask[where] else "its turn is trained"
        yield f"{TOKENS}: position {where} has loss mask {int(mask[where])}, but {told}"


def _row_faults(trajectory: Trajectory, arrays: Arrays) -> Iterator[str]:
    """A trajectory of several rows counts once, so its rows must agree on what it is."""
    row, rows, whole = trajectory.row, trajectory.num_rows, trajectory.trajectory_loss_tokens
    own = int(np.count_nonzero(arrays.loss_mask))
    if row >= rows:
        yield f"{GROUP}: row {row} of a trajectory of {rows} rows"
    if (rows == 1 and whole not in (0, own)) or (rows > 1 and whole < own):
        yield f"{GROUP}: {own} loss tokens in row {row} of {rows}, the trajectory says {whole}"
    # Counting bytes takes a tenth of the time that np.isin takes for a short row.
    provenance = bytes(trajectory.provenance.data)
    sampled = provenance.count(Provenance.SAMPLED) + provenance.count(Provenance.RECORDED)
    if sampled != trajectory.num_sampled_tokens:
        yield f"{TOKENS}: {sampled} sampled tokens, the row says {trajectory.num_sampled_tokens}"


def _hash_faults(trajectory: Trajectory, arrays: Arrays) -> Iterator[str]:
    """One pass over the row: the hash of each prefix goes on from the one before."""
    ids = arrays.token_ids.astype("<i4", copy=False)
    hasher = xxhash.xxh3_128()
    done = 0
    for number, turn in enumerate(trajectory.turns):
        if not done <= turn.prompt_end <= turn.end <= len(ids):
            yield (
                f"{TOKENS}: turn {number} is [{turn.prompt_end}, {turn.end}) after {done} "
                f"in a row of {len(ids)}"
            )
            return
        hasher.update(ids[done : turn.end].data)
        done = turn.end
        if hasher.hexdigest() != turn.prefix_hash:
            yield (
                f"{TOKENS}: prefix [0, {turn.end}) hashes to {hasher.hexdigest()}, "
                f"turn {number} says {turn.prefix_hash}"
            )
            return


def _logprob_faults(trajectory: Trajectory, arrays: Arrays) -> Iterator[str]:
    logprobs = arrays.logprobs
    sampled = arrays.provenance == Provenance.SAMPLED
    bad = np.flatnonzero(~np.isfinite(logprobs) | (logprobs > LOGPROB_MAX))
    if len(bad):
        yield f"{LOGPROBS}: log-prob {logprobs[bad[0]]} at position {int(bad[0])}"
    made_up = np.flatnonzero((logprobs != 0) & ~sampled)
    if len(made_up):
        where = int(made_up[0])
        yield f"{LOGPROBS}: log-prob {logprobs[where]} at position {where}, which was not sampled"
    sampling = trajectory.certificate.sampling
    if sampling.temperature == 0:
        yield f"{LOGPROBS}: greedy replies were drawn from no distribution that can be trained"
    if sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0:
        yield (
            f"{LOGPROBS}: sampled with top_p {sampling.top_p}, top_k {sampling.top_k}, min_p "
            f"{sampling.min_p}; the trainer's log-probs are of the whole distribution"
        )


def _version_faults(trajectory: Trajectory, arrays: Arrays, rules: DoorRules) -> Iterator[str]:
    length = len(arrays.token_ids)
    covered = np.zeros(length, dtype=bool)
    for span in trajectory.spans:
        if not span.start < span.end <= length:
            yield f"{VERSIONS}: span [{span.start}, {span.end}) in a row of {length}"
            return
        if span.version > rules.version:
            yield (
                f"{VERSIONS}: span [{span.start}, {span.end}) is of version {span.version}, "
                f"the trainer is at {rules.version}"
            )
        covered[span.start : span.end] = True
    for before, after in pairwise(trajectory.spans):
        if after.start < before.end:
            yield (
                f"{VERSIONS}: span [{after.start}, {after.end}) follows "
                f"[{before.start}, {before.end})"
            )
    sampled = arrays.provenance == Provenance.SAMPLED
    if len(bare := np.flatnonzero(sampled & ~covered)):
        yield f"{VERSIONS}: position {int(bare[0])} was sampled under no version"
    if len(idle := np.flatnonzero(covered & ~sampled)):
        yield f"{VERSIONS}: position {int(idle[0])} has a version, but was not sampled"
