"""JSON that is nested beyond reason: a client's, or a reply that opens one bracket after another.

Every reader of JSON has a depth at which it gives up, each at another. One bound, well below all of
them, makes what is taken here readable everywhere.
"""

from __future__ import annotations

import re
from typing import Final

NESTING_MAX: Final = 100

_TEXTS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS: Final = re.compile(r"[\[\]{}]")


def is_deep(text: str) -> bool:
    """Whether brackets outside of its texts stand more than `NESTING_MAX` deep."""
    if text.count("[") + text.count("{") <= NESTING_MAX:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_TEXTS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > NESTING_MAX:
            return True
    return False
