"""Rows of a finished session: what training gets, with its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash
from msgspec.structs import replace

from milepost.actors.arrays import to_bulk
from milepost.actors.routes import routes_hashes
from milepost.actors.seal import sealed
from milepost.actors.session.leaves import LeafRules, leaf_of
from milepost.actors.session.text.canonical import SAME
from milepost.actors.session.text.conversation import conversation_row
from milepost.actors.session.text.repetition import is_repetitive
from milepost.messages.bulk import Bulk
from milepost.messages.shared import FinishReason, Purpose, SamplingParams, Status
from milepost.messages.trajectory import (
    REPETITIVE,
    Certificate,
    Conversation,
    Provenance,
    Trajectory,
    TurnBoundary,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from milepost.actors.session.leaves import Leaf
    from milepost.actors.session.record import Branch
    from milepost.actors.session.row import TokenRow
    from milepost.actors.session.text.canonical import Comparison
    from milepost.actors.session.text.rendering import Renderer
    from milepost.messages.session import FinishTrajectory, SessionSpec
    from milepost.messages.shared import ChatMessage, Prompt


@dataclass(frozen=True, slots=True)
class RowRules:
    """How the branches of a session become rows."""

    leaves: LeafRules = field(default_factory=LeafRules)
    writes_conversations: bool = False
    """Beside the tokens of rows that are trained."""

    @property
    def has_foreign_hooks(self) -> bool:
        """Whether user code takes part, whose cost nobody knows."""
        return self.leaves.is_foreign


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the rows of one finished session."""

    spec: SessionSpec
    verdict: FinishTrajectory
    renderer: Renderer
    limit: str
    """The bound that refused its last turn, or ended its episode; empty: none."""
    bounds: dict[int, str]
    """Of branches, by number of their last turn; see `Session`."""
    metadata: dict[str, Any]

    def rows(self, branches: list[Branch], rules: RowRules) -> tuple[Trajectory, ...]:
        """The rows that are trained, sealed; their arrays are views of the record's.

        Raises:
            LeafFault: a hook broke its contract.
        """
        by_number = {branch.path[-1]: branch for branch in branches}
        limits = self._limits(branches)
        leaves = rules.leaves.choose([leaf_of(branch) for branch in branches])
        loss_tokens = sum(
            turn.end - turn.prompt_end
            for leaf in leaves
            for number, turn in zip(leaf.path, by_number[leaf.number].row.turns, strict=True)
            if number in leaf.trained
        )
        rows = [
            self._row(
                by_number[leaf.number], leaf, place, len(leaves), loss_tokens, limits[leaf.number]
            )
            for place, leaf in enumerate(leaves)
        ]
        if rules.writes_conversations and self.spec.purpose is Purpose.TRAIN:
            said = [by_number[leaf.number] for leaf in leaves]
            rows = [
                _with_conversation(row, branch.messages, branch.tools)
                for row, branch in zip(rows, said, strict=True)
            ]
        return tuple(map(sealed, rows))

    def _limits(self, branches: list[Branch]) -> dict[int, str]:
        """The bound that cut each branch off, by number of its last turn; empty: none did.

        What ended the episode from outside ended every branch; what refused or cut one, only that.
        """
        own = {each.path[-1]: self.bounds.get(each.path[-1], each.cut_by) for each in branches}
        whole = self.limit
        if len(branches) > 1 and (whole in own.values() or whole == "reply_tokens_max"):
            return own
        return {number: whole or limit for number, limit in own.items()}

    def _row(
        self, branch: Branch, leaf: Leaf, place: int, num_rows: int, loss_tokens: int, limit: str
    ) -> Trajectory:
        row, spec, verdict = branch.row, self.spec, self.verdict
        # As a number: NumPy asks an enumeration what it is, which takes five times as long.
        sampled = row.provenance == int(Provenance.SAMPLED)
        mask, turns = sampled.view(np.uint8), tuple(row.turns)
        if leaf.trained != leaf.path:
            mask, turns = _partly_trained(mask, row, leaf)
        is_short = verdict.status is Status.TRUNCATED and not self.limit
        metadata = {**leaf.metadata, **self.metadata, "limit": limit}
        metadata[REPETITIVE] = is_repetitive(row.token_ids[sampled], self.renderer.tokenizer)
        if num_rows > 1:
            metadata["turns"] = list(leaf.path)
        routes = None if row.routes is None else to_bulk(row.routes)
        if routes is not None:
            turns = _with_routes(turns, routes)
        found = self.renderer.canon.compare(branch.messages, branch.tools, row)
        return Trajectory(
            trajectory_id=spec.trajectory_id,
            group_id=spec.group_id,
            prompt_id=spec.prompt_id,
            status=Status.TRUNCATED if limit or is_short else Status.COMPLETED,
            reward=verdict.reward,
            token_ids=to_bulk(row.token_ids, "int32"),
            loss_mask=to_bulk(mask, "uint8"),
            logprobs=to_bulk(row.logprobs, "float32"),
            provenance=to_bulk(row.provenance, "uint8"),
            spans=tuple(row.spans),
            turns=turns,
            certificate=_certificate(self.renderer, spec.sampling, found),
            routes=routes,
            group_size=spec.group_size,
            num_sampled_tokens=int(np.count_nonzero(sampled)),
            row=place,
            num_rows=num_rows,
            trajectory_loss_tokens=loss_tokens if num_rows > 1 else 0,
            metrics=verdict.metrics,
            metadata=metadata,
        )


def _partly_trained(
    mask: NDArray[np.uint8], row: TokenRow, leaf: Leaf
) -> tuple[NDArray[np.uint8], tuple[TurnBoundary, ...]]:
    """Mask and turns where the replies that this row does not train carry no loss."""
    mask, turns = mask.copy(), []
    for number, turn in zip(leaf.path, row.turns, strict=True):
        trained = number in leaf.trained
        if not trained:
            mask[turn.prompt_end : turn.end] = 0
        turns.append(replace(turn, trained=trained))
    return mask, tuple(turns)


def _with_routes(turns: tuple[TurnBoundary, ...], routes: Bulk) -> tuple[TurnBoundary, ...]:
    """Turns that vouch for the routes they added."""
    hashes = routes_hashes(routes, [turn.end for turn in turns])
    return tuple(
        replace(turn, routes_hash=digest) for turn, digest in zip(turns, hashes, strict=True)
    )


def _with_conversation(
    row: Trajectory, messages: list[ChatMessage], tools: list[dict[str, Any]]
) -> Trajectory:
    """The row with what it says written down beside it, under a hash in its certificate."""
    text = msgspec.json.encode(Conversation(messages=messages, tools=tools))
    certificate = replace(row.certificate, conversation_hash=xxhash.xxh3_128_hexdigest(text))
    return replace(row, conversation=Bulk("uint8", (len(text),), text), certificate=certificate)


def import_conversation(
    prompt: Prompt, group_id: str, renderer: Renderer, *, writes_conversation: bool = False
) -> Trajectory:
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
    trajectory = Trajectory(
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
        certificate=_certificate(renderer, SamplingParams(), SAME),
        num_sampled_tokens=int(np.count_nonzero(recorded)),
        metadata=prompt.metadata,
    )
    if writes_conversation:
        trajectory = _with_conversation(trajectory, prompt.messages, prompt.tools)
    return sealed(trajectory)


def _certificate(renderer: Renderer, sampling: SamplingParams, found: Comparison) -> Certificate:
    return Certificate(
        tokenizer_hash=renderer.tokenizer.content_hash,
        template_hash=renderer.template.content_hash,
        family=renderer.family.name,
        sampling=sampling,
        canonical_mismatch=found.first,
        mismatch_kinds=found.kinds,
    )
