"""Row to trajectory: what training gets, with its certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from milepost.actors.arrays import to_bulk
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.mismatch import compare_rows
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.shared import FinishReason, SamplingParams, Status
from milepost.messages.trajectory import Certificate, Provenance, Trajectory, TurnBoundary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from milepost.actors.session.row import TokenRow
    from milepost.actors.session.text.rendering import Renderer
    from milepost.messages.session import FinishTrajectory, SessionSpec
    from milepost.messages.shared import ChatMessage, Prompt


def assemble(
    spec: SessionSpec,
    row: TokenRow,
    verdict: FinishTrajectory,
    renderer: Renderer,
    *,
    mismatch: str | None,
    metadata: dict[str, Any],
) -> Trajectory:
    """The finished trajectory. Its arrays are views of the row, which must not change any more."""
    truncated = bool(metadata["limit"])
    sampled = row.provenance == Provenance.SAMPLED
    return Trajectory(
        trajectory_id=spec.trajectory_id,
        group_id=spec.group_id,
        prompt_id=spec.prompt_id,
        status=Status.TRUNCATED if truncated else verdict.status,
        reward=verdict.reward,
        token_ids=to_bulk(row.token_ids, "int32"),
        loss_mask=to_bulk(sampled.view(np.uint8), "uint8"),
        logprobs=to_bulk(row.logprobs, "float32"),
        provenance=to_bulk(row.provenance, "uint8"),
        spans=tuple(row.spans),
        turns=tuple(row.turns),
        certificate=_certificate(renderer, spec.sampling, mismatch),
        group_size=spec.group_size,
        num_sampled_tokens=int(np.count_nonzero(sampled)),
        metrics=verdict.metrics,
        metadata=metadata,
    )


def canonical_mismatch(
    messages: Sequence[ChatMessage],
    tools: Sequence[dict[str, Any]],
    row: TokenRow,
    renderer: Renderer,
) -> str | None:
    """First difference between the row and the conversation rendered as a whole, if there is one.

    A last reply that was cut off is compared as if it had ended: nobody sampled its end.
    """
    token_ids = row.token_ids.tolist()
    if row.turns and row.turns[-1].finish_reason is not FinishReason.STOP:
        token_ids.append(renderer.family.stop_token_ids[0])
    try:
        text = renderer.template.render(messages, tools, generate=False)
    except RenderFailed as error:
        return f"not_rendered: {error}"
    found = compare_rows(text, token_ids, renderer.tokenizer, renderer.family)
    return str(found[0]) if found else None


def import_conversation(prompt: Prompt, group_id: str, renderer: Renderer) -> Trajectory:
    """A recorded conversation as a trajectory: mask 1 where the assistant spoke, reward 0.

    Raises:
        RenderFailed: it cannot be rendered, or nothing in it is the assistant's.
    """
    row = conversation_row(renderer, prompt.messages, prompt.tools)
    hasher, place = xxhash.xxh3_128(), 0
    turns = []
    for start, end in row.turns:
        hasher.update(row.token_ids[place:end].data)
        place = end
        turns.append(
            TurnBoundary(
                prompt_end=start,
                end=end,
                finish_reason=FinishReason.STOP,
                prefix_hash=hasher.hexdigest(),
                engine="",
            )
        )
    recorded = row.provenance == Provenance.RECORDED
    return Trajectory(
        trajectory_id=f"{group_id}.0",
        group_id=group_id,
        prompt_id=prompt.prompt_id,
        status=Status.COMPLETED,
        reward=0.0,
        token_ids=to_bulk(row.token_ids, "int32"),
        loss_mask=to_bulk(recorded.view(np.uint8)),
        logprobs=to_bulk(np.zeros(len(row.token_ids), dtype=np.float32)),
        provenance=to_bulk(row.provenance, "uint8"),
        spans=(),
        turns=tuple(turns),
        certificate=_certificate(renderer, SamplingParams(), None),
        num_sampled_tokens=int(np.count_nonzero(recorded)),
        metadata=prompt.metadata,
    )


def _certificate(renderer: Renderer, sampling: SamplingParams, mismatch: str | None) -> Certificate:
    return Certificate(
        tokenizer_hash=renderer.tokenizer.content_hash,
        template_hash=renderer.template.content_hash,
        family=renderer.family.name,
        sampling=sampling,
        canonical_mismatch=mismatch,
    )
