"""Tokens of a short text, word by word out of a memory.

A byte-level tokenizer cuts a text at its added tokens and then into words, and turns each word into
tokens by itself, whatever stands around it. People and tools use few words, so most of the work has
been done before: what is left is cutting, which takes a quarter of the time of the library's way,
from cold caches, too. That one keeps account of the place of every byte.

Only for ASCII, only where the cut is one of those written down here, and only after both ways were
seen to agree on a text that has every border between two kinds of characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate, chain, product
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from tokenizers import models

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import tokenizers
    from numpy.typing import NDArray

    Ids = tuple[int, ...]

WORDS_MAX: Final = 16_384
"""Remembered; 200 bytes each. Then all are forgotten."""
WORD_CHARS_MAX: Final = 32
"""A longer one hardly comes again."""
_CUT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CUT_ASCII: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]%s| ?[^\sA-Za-z0-9]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS: Final = {_CUT % count: re.compile(_CUT_ASCII % count, re.ASCII) for count in ("", "{1,3}")}
"""How Qwen, and Llama 3 with many others, cut a text into words -> the same for ASCII alone."""
_NORMALIZERS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Those that leave ASCII as it is."""
_BYTES: Final = {code: 0x100 + code for code in range(33)} | {0x7F: 0x121}
"""How byte-level vocabularies spell the bytes of ASCII that cannot be seen; the others as they are.
"""
_PROBED: Final = "'stremvldSTREMVLDaZ0189 \t\n\r\x0b\x0c\x00\x1c\x7f.,<>|{}\"_-"


class Words:
    """See the module; use `words_of` to make one.

    Threads may lose each other's memories here, never change one.

    Args:
        model: turns words into tokens.
        cut: finds the words.
        added: tokens that are cut out first, by their text.
    """

    def __init__(self, model: Any, cut: re.Pattern[str], added: dict[str, int]) -> None:
        self._model = model
        self._find = cut.findall
        self._split = cutter(added).split
        self._added: dict[str, Ids] = {text: (token,) for text, token in added.items()}
        self._known = dict(self._added)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids of an ASCII text, int32 [N]."""
        return _joined(self._ids(self._words(text)))

    def encode_with_places(
        self, text: str, places: Sequence[int]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """As `Tokenizer.encode_with_places`, of an ASCII text."""
        words = self._words(text)
        ids = self._ids(words)
        ends = list(accumulate(map(len, words)))
        before = [0, *accumulate(map(len, ids))]
        tokens = []
        for place in places:
            at = bisect_right(ends, place)
            token = before[at]
            if at < len(words) and (inside := place - (ends[at - 1] if at else 0)):
                token += bisect_left(self._starts(words[at]), inside)
            tokens.append(token)
        return _joined(ids), tokens

    def _words(self, text: str) -> list[str]:
        words: list[str] = []
        for place, piece in enumerate(self._split(text)):
            if place % 2:
                words.append(piece)
            elif piece:
                words += self._find(piece)
        return words

    def _ids(self, words: list[str]) -> list[Ids]:
        known = self._known
        return [known.get(word) or self._learned(word) for word in words]

    def _learned(self, word: str) -> Ids:
        ids = tuple(token.id for token in self._model.tokenize(word.translate(_BYTES)))
        if len(word) <= WORD_CHARS_MAX:
            if len(self._known) >= WORDS_MAX:
                self.forget()
            self._known[word] = ids
        return ids

    def _starts(self, word: str) -> list[int]:
        """Where the tokens of a word begin in it."""
        if word in self._added:
            return [0]
        lengths = [len(token.value) for token in self._model.tokenize(word.translate(_BYTES))]
        return list(accumulate(lengths, initial=0))[:-1]

    def forget(self) -> None:
        """All words."""
        self._known = dict(self._added)


def cutter(tokens: Iterable[str]) -> re.Pattern[str]:
    """Splits a text at these tokens; every second piece is one of them, the others may be empty.

    Where several begin at one place, the longest is meant.
    """
    longest = sorted({token for token in tokens if token}, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest)) or '(?!)'})")


def words_of(backend: tokenizers.Tokenizer) -> Words | None:
    """The quick way for this tokenizer; None when it has another kind of words."""
    cut = _cut_of(backend)
    added = backend.get_added_tokens_decoder()
    kinds = {(token.normalized, token.lstrip, token.rstrip, token.single_word)
             for token in added.values()}  # fmt: skip
    model = backend.model
    if (
        cut is None
        or not isinstance(model, models.BPE)
        # It would forget merges at random.
        or model.dropout
        or backend.encode_special_tokens
        or len(kinds) > 1
        or any(any(kind[1:]) for kind in kinds)
        or "" in {token.content for token in added.values()}
    ):
        return None
    words = Words(model, cut, {token.content: number for number, token in added.items()})
    probe = "".join(map("".join, product(_PROBED, repeat=2)))
    pieces = backend.pre_tokenizer.pre_tokenize_str(probe)
    if cut.findall(probe) != [probe[start:end] for _piece, (start, end) in pieces]:
        return None
    for text in (probe, *(f"a {token.content}\n b" for token in added.values())):
        if text.isascii() and words.encode(text).tolist() != _plainly(backend, text):
            return None
    words.forget()
    return words


def _plainly(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def _cut_of(backend: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Finds the words of this tokenizer; None when nobody has written down how."""
    normalizer, after = _state(backend.normalizer), _state(backend.post_processor)
    if normalizer and normalizer.get("type") not in _NORMALIZERS:
        return None
    steps = [after, *after.get("processors", ())]
    if any(step.get("trim_offsets") for step in steps):
        # Its tokens begin elsewhere than their text does.
        return None
    match _state(backend.pre_tokenizer):
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return CUTS.get(pattern)
    return None


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as its file describes it; empty when it has none."""
    if part is None:
        return {}
    state: dict[str, Any] = msgspec.json.decode(part.__getstate__())
    return state


def _joined(ids: list[Ids]) -> NDArray[np.int32]:
    return np.array(list(chain.from_iterable(ids)), dtype=np.int32)
