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
SHORT_BYTES_MAX: Final = 2000
"""Of a text that fits into zlib's small tables whole: its form has the same length, and a quarter
of a megabyte need not be made ready for it, which may take ten times as long as the text."""
_SMALL: Final = (-1, zlib.DEFLATED, 12, 5)
"""Window of 4,096 bytes, blocks of 2,048 symbols."""


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
    if len(data) > SHORT_BYTES_MAX:
        return len(data) / len(zlib.compress(data))
    small = zlib.compressobj(*_SMALL)
    return len(data) / (len(small.compress(data)) + len(small.flush()))
