"""The canary: after each activation, an engine must compute the trainer's own log-probs.

A confirmation says that an engine believes to serve a version. The canary asks for evidence: short
token rows are scored by the engine under the weights it serves, and compared with what the trainer
computed on its own weights while it exported them. A transport that lies, half of the buckets, a
shifted tensor or swapped layers all show here, within the same publication.
"""

from __future__ import annotations

import math

from milepost.messages.bulk import Bulk


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
