"""The canary: after each activation, an engine must compute the trainer's own log-probs.

A confirmation says that an engine believes to serve a version. The canary asks for evidence: short
token rows are scored by the engine under the weights it serves, and compared with what the trainer
computed on its own weights while it exported them. A transport that lies, half of the buckets, a
shifted tensor or swapped layers all show here, within the same publication.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from milepost.messages.bulk import Bulk

if TYPE_CHECKING:
    from milepost.messages.publisher import ProbeTurn
    from milepost.messages.trajectory import Trajectory


def largest_difference(expected: tuple[Bulk, ...], scored: tuple[Bulk, ...]) -> float:
    """Largest |difference| in nats over all positions but each row's first; inf if not comparable.

    Args:
        expected: float32 [T] each.
        scored: float32 [T] each.
    """
    if [row.shape for row in expected] != [row.shape for row in scored]:
        return math.inf
    largest = 0.0
    for want, have in zip(expected, scored, strict=True):
        if (want.dtype, have.dtype) != ("float32", "float32"):
            return math.inf
        pairs = zip(want.data.cast("f"), have.data.cast("f"), strict=True)
        for position, (wanted, got) in enumerate(pairs):
            difference = abs(wanted - got) if position else 0.0
            if math.isnan(difference):
                return math.inf
            largest = max(largest, difference)
    return largest


def prompt_fault(row: Trajectory, probe: ProbeTurn) -> str:
    """Why a session's row is not the trainer's prompt with one token after it; or empty."""
    if [(turn.prompt_end, turn.end) for turn in row.turns] != [
        (row.token_ids.shape[0] - 1, row.token_ids.shape[0])
    ]:
        ends = [(turn.prompt_end, turn.end) for turn in row.turns]
        return f"a row of {row.token_ids.shape[0]} tokens with turns at {ends}, one token was asked"
    wanted, found = probe.token_ids.data.cast("i"), row.token_ids.data.cast("i")[:-1]
    if wanted == found:
        return ""
    pairs = enumerate(zip(wanted, found, strict=False))
    shorter = min(len(wanted), len(found))
    place = next((at for at, (want, have) in pairs if want != have), shorter)
    return (
        f"the session renders it as {len(found)} tokens, the trainer as {len(wanted)}, and they "
        f"differ from token {place} on: tokenizer, template or its options are not the same"
    )


def turn_difference(row: Trajectory, probe: ProbeTurn) -> float:
    """|session - trainer| of the log-prob of the row's last token, nats; inf: not comparable."""
    expected, logprobs = probe.logprobs.data.cast("f"), row.logprobs.data.cast("f")
    token = row.token_ids.data.cast("i")[-1]
    if not 0 <= token < len(expected):
        return math.inf
    difference = abs(expected[token] - logprobs[-1])
    return math.inf if math.isnan(difference) else difference
