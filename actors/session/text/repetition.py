"""Whether what a model sampled goes round in circles: it does when hardly anything of it is new."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.session.text.tokenizer import Tokenizer

TAIL_CHARACTERS: Final = 10_000
"""Only the end is looked at: a loop, once begun, lasts to the end."""
RATIO_MAX: Final = 10.0
"""Of a text's bytes to their compressed form. Prose has about 2, tables and code up to 6."""
ZLIB_BYTES_MIN: Final = 11
"""zlib writes no less than its frame and one block."""


def is_repetitive(token_ids: NDArray[np.int32], tokenizer: Tokenizer) -> bool:
    """Whether the last 10,000 characters have a zlib ratio above 10.

    Costs about 0.4 us a token of the end, and 20 us for each 1,000 of its characters.

    Args:
        token_ids: int32 [N], all sampled tokens of one row, in order.
        tokenizer: of the row.
    """
    # No token has less than a character, but for those that share one: these are few.
    tail = tokenizer.decode(token_ids[-TAIL_CHARACTERS:].tolist())[-TAIL_CHARACTERS:]
    return compression_ratio(tail) > RATIO_MAX


def compression_ratio(text: str) -> float:
    """Bytes of the text in UTF-8 for each byte of its zlib form; 1 for a text too short to tell."""
    data = text.encode("utf-8", "replace")
    if len(data) <= RATIO_MAX * ZLIB_BYTES_MIN:
        return 1.0
    return len(data) / len(zlib.compress(data))
