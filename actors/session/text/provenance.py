"""Which tokens of rendered text are template, user text or tool output.

Only a record for people and certificates: loss follows what was sampled or recorded, never this.
A template may strip or rewrite a message; what cannot be found again counts as template.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from milepost.actors.session.text.mismatch import first_place
from milepost.actors.session.text.template import RenderFailed
from milepost.messages.trajectory import Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from milepost.messages.shared import ChatMessage

_KINDS: Final[dict[str, Provenance]] = {"tool": Provenance.TOOL}
_OPEN: Final = 0xF0000
_CLOSE: Final = 0x100000
"""Private-use characters, a pair for each message whose content is looked for by rendering."""
_LONG_CHARS: Final = 32
"""So many are no word of a template."""
_NUM_MARKS: Final = 0xFFFE
_MARKS: Final = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")


def find_contents(
    text: str, messages: Sequence[ChatMessage], render: Callable[[Sequence[ChatMessage]], str]
) -> list[tuple[int, int, Provenance]]:
    """[start, end) and kind of each message's content in `text`, in order.

    What stands there once is where it is. A short answer may also be a word of the template, of a
    tool's schema or of another message, and of a reply the template may leave words out: such are
    marked and rendered again, which costs as much as the first time.

    Args:
        text: the messages, rendered.
        messages: those whose contents are looked for.
        render: renders messages as these were.
    """
    # A template may strip, but it strips the ends only.
    cores = {
        at: core
        for at, message in enumerate(messages)
        if isinstance(content := message.get("content"), str) and (core := content.strip())
    }
    found = sorted(
        (start, start + len(core), at)
        for at, core in cores.items()
        if (len(core) >= _LONG_CHARS or messages[at]["role"] != "assistant")
        and (start := text.find(core)) >= 0
        and text.find(core, start + 1) < 0
    )
    if any(start < end for (_, end, _), (start, _, _) in pairwise(found)):
        # One that the template left out is a word of another.
        found = []
    known = {at for _start, _end, at in found}
    if unsure := {at: core for at, core in cores.items() if at not in known}:
        found += _marked(text, messages, unsure, render)
    return [
        (start, end, _KINDS.get(str(messages[at]["role"]), Provenance.INPUT))
        for start, end, at in sorted(found)
    ]


def _marked(
    text: str,
    messages: Sequence[ChatMessage],
    cores: Mapping[int, str],
    render: Callable[[Sequence[ChatMessage]], str],
) -> list[tuple[int, int, int]]:
    """[start, end) and number of each of these messages in `text`, by rendering them with marks.

    Nothing is found where the template writes something else because of the marks.
    """
    numbers = list(cores)[:_NUM_MARKS]
    shown = list(messages)
    for mark, at in enumerate(numbers):
        content = str(messages[at]["content"])
        before, after = content.split(cores[at], 1)
        marked = f"{before}{chr(_OPEN + mark)}{cores[at]}{chr(_CLOSE + mark)}{after}"
        shown[at] = {**messages[at], "content": marked}
    try:
        written = render(shown)
    except RenderFailed:
        return []
    if _MARKS.sub("", written) != text:
        return []
    places: list[tuple[int, int, int]] = []
    opened: dict[int, int] = {}
    for num_before, met in enumerate(_MARKS.finditer(written)):
        place, code = met.start() - num_before, ord(met[0])
        if code < _CLOSE:
            opened[numbers[code - _OPEN]] = place
            continue
        at = numbers[code - _CLOSE]
        # A template may take the beginning off, such as the reasoning of a reply, or the end.
        if (start := opened.pop(at, -1)) < 0:
            core = cores[at]
            same = first_place(core[::-1], text[max(0, place - len(core)) : place][::-1])
            start = place - len(core[len(core) - same :].lstrip())
        places.append((start, place, at))
    for at, start in opened.items():
        same = first_place(cores[at], text[start : start + len(cores[at])])
        places.append((start, start + len(cores[at][:same].rstrip()), at))
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
