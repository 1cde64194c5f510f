"""Which tokens of rendered text are template, user text or tool output.

Only a record for people and certificates: loss follows what was sampled or recorded, never this.
A template may strip or rewrite a message; what cannot be found again counts as template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from milepost.messages.trajectory import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from milepost.messages.shared import ChatMessage

_KINDS: Final[dict[str, Provenance]] = {"tool": Provenance.TOOL}


def find_contents(text: str, messages: Sequence[ChatMessage]) -> list[tuple[int, int, Provenance]]:
    """[start, end) and kind of each message's content in `text`, in order.

    Each is looked for after the one before it, and after the next mention of its role, so that a
    user who says "user" is not found in the role's own name.
    """
    places = []
    cursor = 0
    for message in messages:
        content = message.get("content")
        if not isinstance(content, str) or not content.strip():
            continue
        role = str(message["role"])
        # A developer's words may be written as the system's.
        named = -1 if role == "developer" else text.find(role, cursor)
        after = cursor if named < 0 else named + len(role)
        # A template may strip, but it strips the ends only.
        core = content.strip()
        start = text.find(core, after)
        if start < 0:
            continue
        end = start + len(core)
        places.append((start, end, _KINDS.get(role, Provenance.INPUT)))
        cursor = end
    return places


def mark_spans(length: int, spans: Sequence[tuple[int, int, Provenance]]) -> NDArray[np.uint8]:
    """Kind of each token, uint8 [length], where [start, end) and kind are given in tokens."""
    marked = np.full(length, Provenance.TEMPLATE, dtype=np.uint8)
    for start, end, kind in spans:
        marked[start:end] = kind
    return marked


def mark_tokens(
    starts: NDArray[np.int64], places: Sequence[tuple[int, int, Provenance]]
) -> NDArray[np.uint8]:
    """Kind of each token, uint8 [N], by the place of its first character.

    Args:
        starts: first character of each token, non-decreasing, [N].
        places: from `find_contents`.
    """
    marked = np.full(starts.shape, Provenance.TEMPLATE, dtype=np.uint8)
    for start, end, kind in places:
        low, high = np.searchsorted(starts, (start, end))
        marked[low:high] = kind
    return marked
