"""Branches of a session as they stand now, safe from what comes later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from milepost.actors.session.leaves import leaf_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.session.leaves import Leaf
    from milepost.actors.session.record import Branch
    from milepost.messages.shared import ChatMessage, VersionSpan
    from milepost.messages.trajectory import TurnBoundary


class Answer(NamedTuple):
    """How a reply left this door."""

    asked_s: float = 0.0
    """Unix time."""
    answered_s: float = 0.0
    response_id: str = ""


ELSEWHERE: Final = Answer()
"""Of a reply that was asked for by another way, or so long ago that nobody remembers."""


@dataclass(frozen=True, slots=True)
class BranchCopy:
    """One conversation, T tokens long.

    Attributes:
        leaf: as hooks see it.
        token_ids: int32 [T].
        logprobs: float32 [T].
        provenance: uint8 [T] of `Provenance`.
        spans: of weight versions.
        turns: its replies, in order.
        messages: everything said, replies included.
        ends: for each turn, number of messages up to and with its reply.
        tools: of the conversation.
    """

    leaf: Leaf
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    provenance: NDArray[np.uint8]
    spans: tuple[VersionSpan, ...]
    turns: tuple[TurnBoundary, ...]
    messages: list[ChatMessage]
    ends: tuple[int, ...]
    tools: list[dict[str, Any]]


def copies_of(branches: Sequence[Branch]) -> list[BranchCopy]:
    """Branches that `Record.later` gave: nobody else changes them."""
    return [
        BranchCopy(
            leaf=leaf_of(branch),
            token_ids=branch.row.token_ids,
            logprobs=branch.row.logprobs,
            provenance=branch.row.provenance,
            spans=tuple(branch.row.spans),
            turns=tuple(branch.row.turns),
            messages=branch.messages,
            ends=branch.ends,
            tools=branch.tools,
        )
        for branch in branches
    ]


def tree_of(branches: list[BranchCopy], answers: Mapping[int, Answer]) -> dict[str, Any]:
    """The tree of a session's generations, as `GET /sessions/{id}` shows it.

    Args:
        branches: of the session.
        answers: by the number of the generation.
    """
    nodes: dict[int, dict[str, Any]] = {}
    for branch in branches:
        parent = None
        for number, turn in zip(branch.leaf.path, branch.turns, strict=True):
            answer = answers.get(number, ELSEWHERE)
            nodes[number] = {
                "id": number,
                "parent": parent,
                "seq": number,
                "committed_at": answer.answered_s,
                "response_id": answer.response_id or None,
                "truncated": turn.finish_reason.value == "length",
                "completion_span": [turn.prompt_end, turn.end],
                "num_tokens": turn.end,
            }
            parent = number
    leaves = [
        {"node_id": branch.leaf.number, "path_node_ids": list(branch.leaf.path)}
        for branch in branches
    ]
    return {"nodes": [nodes[number] for number in sorted(nodes)], "leaves": leaves}
