"""How the log-probs that a trainer computes lie along a row."""

from __future__ import annotations

from array import array
from math import nan

from milepost.messages.bulk import Bulk
from milepost.messages.trajectory import Provenance, Trajectory

SAMPLED = (Provenance.SAMPLED, Provenance.RECORDED)


def aligned(row: Trajectory, logprobs: Bulk | None) -> Bulk | None:
    """Log-probs of a row's loss tokens, along its sampled tokens.

    Args:
        row: S sampled tokens, N of them with loss.
        logprobs: float32 [N].

    Returns:
        float32 [S], NaN where a token has no loss; None when there are none, or not N.
    """
    mask, provenance = bytes(row.loss_mask.data), bytes(row.provenance.data)
    if logprobs is None or logprobs.shape != (mask.count(1),):
        return None
    has_loss = [bool(m) for m, p in zip(mask, provenance, strict=True) if p in SAMPLED or m]
    if all(has_loss):
        return logprobs
    values = array("f", bytes(logprobs.data))
    spread = array("f", [nan]) * len(has_loss)
    at = 0
    for place, trained in enumerate(has_loss):
        if trained:
            spread[place] = values[at]
            at += 1
    return Bulk("float32", (len(spread),), spread.tobytes())
