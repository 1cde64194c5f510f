"""`POST /sessions/{id}/samples`: rows of a session as one safetensors file.

Tensors `tokens.N` (int64 [T]), `loss_mask.N` (uint8 [R]) and `rollout_log_probs.N` (float64 [R]) of
sample N, whose response is its last R tokens: everything after the first prompt. `_samples_meta` is
compact JSON as uint8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors.numpy import save

from milepost.actors.session.http.dialect import encode
from milepost.actors.session.leaves import LeafFault
from milepost.actors.session.text.mismatch import compare_rows
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import FinishReason
from milepost.messages.trajectory import Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from milepost.actors.session.http.branches import BranchCopy
    from milepost.actors.session.leaves import Leaf, LeafRules
    from milepost.actors.session.text.rendering import Renderer

ABSENT: Final = ("prefix_cache_info", "rollout_indexer_topk", "rollout_routed_experts")
RESERVED: Final = frozenset({"accumulated_token_ids", "leaf", "tito_session_mismatch"})


class NoSamples(ValueError):
    """The samples cannot be made; the reason is for whoever asked."""


def encode_samples(
    branches: Sequence[BranchCopy],
    renderer: Renderer,
    *,
    rules: LeafRules,
    length_max: int | None,
    metadata: Mapping[str, Any],
) -> bytes:
    """The file.

    Args:
        branches: of the session.
        renderer: for texts.
        rules: which branches become samples, and which replies each of them trains.
        length_max: longer rows are cut, and truncated.
        metadata: of the client's, added to every sample's; `reward` becomes the sample's.

    Raises:
        NoSamples: `metadata` sets what only the server may, or a hook broke its contract.
    """
    if taken := RESERVED.intersection(metadata):
        raise NoSamples(f"metadata sets {', '.join(sorted(taken))}, which is the server's")
    tensors: dict[str, NDArray[Any]] = {}
    samples: list[dict[str, Any]] = []
    for branch, leaf in _chosen(branches, rules):
        length, status = _kept(branch, length_max)
        if not length:
            continue
        start, number = branch.turns[0].prompt_end, len(samples)
        mask = (branch.provenance == Provenance.SAMPLED).astype(np.uint8)
        for node, turn in zip(leaf.path, branch.turns, strict=True):
            # What an adapter said is not the policy's.
            if node not in leaf.trained or turn.adapter:
                mask[turn.prompt_end : turn.end] = 0
        tensors[f"tokens.{number}"] = branch.token_ids[:length].astype(np.int64)
        tensors[f"loss_mask.{number}"] = mask[start:length].copy()
        tensors[f"rollout_log_probs.{number}"] = branch.logprobs[start:length].astype(np.float64)
        # A reply that was its stop token alone may have lost that.
        kept = [turn for turn in branch.turns if turn.prompt_end < min(turn.end, length)]
        sample: dict[str, Any] = {
            "response": renderer.tokenizer.decode(branch.token_ids[start:length].tolist()),
            "response_length": length - start,
            "status": status,
            "weight_versions": [_version(branch, min(turn.end, length)) for turn in kept],
            "metadata": {**leaf.metadata, **metadata, "leaf": {"path_node_ids": list(leaf.path)}},
            "nulls": list(ABSENT),
        }
        if metadata.get("reward") is not None:
            sample["reward"] = metadata["reward"]
        samples.append(sample)
    empty = "" if samples else ("all_truncated" if branches else "no_records")
    meta = {
        "samples": samples,
        "session_metadata": session_metadata(branches, renderer),
        "empty_reason": empty or None,
    }
    tensors["_samples_meta"] = np.frombuffer(encode(meta), dtype=np.uint8)
    return save(tensors)


def _chosen(branches: Sequence[BranchCopy], rules: LeafRules) -> list[tuple[BranchCopy, Leaf]]:
    by_number = {branch.leaf.number: branch for branch in branches}
    try:
        leaves = rules.choose([branch.leaf for branch in branches]) if branches else []
    except LeafFault as fault:
        raise NoSamples(str(fault)) from fault
    return [(by_number[leaf.number], leaf) for leaf in leaves]


def session_metadata(branches: Sequence[BranchCopy], renderer: Renderer) -> dict[str, Any]:
    """What a session says of itself: its newest branch's row, and whether it renders the same."""
    told: dict[str, Any] = {"max_trim_tokens": renderer.family.trim_max}
    if not branches:
        return {**told, "accumulated_token_ids": []}
    newest = branches[-1]
    told["accumulated_token_ids"] = newest.token_ids.tolist()
    told["tito_session_mismatch"] = _mismatches(newest, renderer)
    return told


def _mismatches(branch: BranchCopy, renderer: Renderer) -> list[dict[str, Any]]:
    """Every difference to the conversation rendered as a whole; a cut reply counts as ended."""
    token_ids = branch.token_ids.tolist()
    if branch.turns[-1].finish_reason is not FinishReason.STOP:
        token_ids.append(renderer.family.stop_token_ids[0])
    try:
        text = renderer.template.render(branch.messages, branch.tools, generate=False)
    except RenderFailed as error:
        return [{"type": "not_rendered", "segment_index": -1, "detail": str(error)}]
    return [
        {
            "type": found.kind,
            "segment_index": found.segment,
            "expected_text": found.expected,
            "actual_text": found.actual,
            "detail": str(found),
        }
        for found in compare_rows(text, token_ids, renderer.tokenizer, renderer.family)
    ]


def _kept(branch: BranchCopy, length_max: int | None) -> tuple[int, str]:
    """Tokens that are kept, and the status of the sample; 0: nothing is."""
    last = branch.turns[-1]
    if length_max is None or last.end <= length_max:
        is_cut = last.finish_reason is FinishReason.LENGTH
        return last.end, "truncated" if is_cut else "completed"
    kept = 0
    for turn in branch.turns:
        if turn.end > length_max:
            # The first turn that overflows keeps what fits of its reply.
            return (length_max if turn.prompt_end < length_max else kept), "truncated"
        kept = turn.end
    return kept, "truncated"


def _version(branch: BranchCopy, end: int) -> str:
    """The version that sampled the last token before `end`."""
    return next(str(span.version) for span in branch.spans if span.start < end <= span.end)
