"""The model's tokenizer, read from its folder by the `tokenizers` library alone."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from xxhash import xxh3_128_hexdigest

from milepost.actors.session.text.pieces import pieces_of
from milepost.actors.session.text.sources import SourceDamaged, read_config
from milepost.actors.session.text.words import cutter, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

TOKENIZER_FILE = "tokenizer.json"
LONG_CHARS = 2048
LONG_TOKENS = 512
"""Above these, work goes through the batch calls, which let other threads run meanwhile. The plain
ones keep the interpreter to themselves: 450 ms for a prompt of 128k tokens."""
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """Text to ids and back, without adding, padding or truncating anything.

    Attributes:
        content_hash: xxh3-128 hex of the bytes of tokenizer.json.
        special_ids: ids of all tokens marked special.
        special_tokens: their texts, by id.
        special_cut: splits a text; every second piece is a special token.
        added_tokens: ids of all tokens that were added to the vocabulary, special or not, by text.
        named_tokens: `bos_token`, `eos_token`, ... as the chat template sees them.
        vocabulary_size: ids are below it; the added tokens are counted.
        own_size: ids of tokens that were not added are below it.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, content_hash: str, named_tokens: Mapping[str, str]
    ) -> None:
        # A tokenizer.json may carry settings for batches of an encoder model.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._words = words_of(backend)
        self._pieces = pieces_of(backend)
        self.content_hash = content_hash
        self.named_tokens = dict(named_tokens)
        self.special_tokens = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        self.added_tokens = {
            token.content: token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self.special_ids = frozenset(self.special_tokens)
        self.special_cut = cutter(self.special_tokens.values())
        self.vocabulary_size = backend.get_vocab_size(with_added_tokens=True)
        self.own_size = backend.get_vocab_size(with_added_tokens=False)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids, int32 [N]; special tokens written out in `text` become their ids."""
        if self._words is not None and len(text) <= LONG_CHARS and text.isascii():
            return self._words.encode(text)
        return np.array(self._encoding(text).ids, dtype=np.int32)

    def encode_with_starts(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Token ids, int32 [N], and where each token starts in `text`, in characters [N]."""
        encoding = self._encoding(text)
        starts = np.array([start for start, _end in encoding.offsets], dtype=np.int64)
        return np.array(encoding.ids, dtype=np.int32), starts

    def encode_with_places(
        self, text: str, places: Sequence[int]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """Token ids, int32 [N], and for each place in `text` the first token that starts there.

        A place is a character; the token is the first that does not start before it, N if none.
        The same as a search in the starts of all tokens, which are never made for it.
        """
        if self._words is not None and len(text) <= LONG_CHARS and text.isascii():
            return self._words.encode_with_places(text, places)
        encoding = self._encoding(text)
        token_ids = np.array(encoding.ids, dtype=np.int32)
        return token_ids, [_first_token(encoding, len(token_ids), place) for place in places]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens included."""
        if len(token_ids) > LONG_TOKENS:
            return str(self._backend.decode_batch([token_ids], skip_special_tokens=False)[0])
        if self._pieces is not None:
            return self._pieces.decode(token_ids)
        return self._backend.decode(token_ids, skip_special_tokens=False)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many lists of ids, each by itself; other threads run meanwhile."""
        return self._backend.decode_batch(rows, skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Id of one token, or None when the vocabulary has no such entry."""
        return self._backend.token_to_id(token)

    def _encoding(self, text: str) -> tokenizers.Encoding:
        if len(text) > LONG_CHARS:
            return self._backend.encode_batch([text], add_special_tokens=False)[0]
        return self._backend.encode(text, add_special_tokens=False)


def _first_token(encoding: tokenizers.Encoding, length: int, place: int) -> int:
    # A token that holds the character may have begun before it, and others may begin with it.
    token = encoding.char_to_token(place)
    if token is None:
        # Some tokenizers drop characters: then the starts tell.
        starts = [start for start, _end in encoding.offsets]
        return bisect_left(starts, place)
    while token > 0 and _start(encoding, token - 1) >= place:
        token -= 1
    while token < length and _start(encoding, token) < place:
        token += 1
    return token


def _start(encoding: tokenizers.Encoding, token: int) -> int:
    span = encoding.token_to_chars(token)
    assert span is not None, f"token {token} stands nowhere in its text"
    return span[0]


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json and tokenizer_config.json.

    Raises:
        FileNotFoundError: the folder has no tokenizer.json.
        SourceDamaged: one of the two cannot be read.
    """
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"no {TOKENIZER_FILE} in {folder}: export the tokenizer in the fast format first"
        )
    content = path.read_bytes()
    try:
        read = tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise SourceDamaged(f"{path} is no tokenizer: {error}") from error
    return Tokenizer(
        read,
        content_hash=xxh3_128_hexdigest(content),
        named_tokens=_named_tokens(read_config(folder)),
    )


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    # Written as a string, or as an added token with its flags.
    named = {}
    for name in NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named
