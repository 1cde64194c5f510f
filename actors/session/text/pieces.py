"""Text of a short list of tokens, put together from the bytes of each.

A byte-level decoder joins the bytes that its tokens spell and reads them as UTF-8. So the bytes of
a token are looked up once; the library looks them up each time, letter by letter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenizers import decoders

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tokenizers

_VISIBLE: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level vocabularies spell by the character of their number."""
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in _VISIBLE)
_BYTE_OF: Final = {chr(byte): byte for byte in _VISIBLE} | {
    chr(0x100 + place): byte for place, byte in enumerate(_HIDDEN)
}


class Pieces:
    """See the module; use `pieces_of` to make one. It never holds more than the vocabulary."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._known: dict[int, bytes] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids; those that no token has say nothing."""
        known = self._known
        try:
            spelled = b"".join([known[token] for token in token_ids])
        except KeyError:
            spelled = b"".join([self._bytes_of(token) for token in token_ids])
        return spelled.decode("utf-8", "replace")

    def _bytes_of(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            text = self._backend.id_to_token(token)
            if text is None:
                return b""
            known = self._known[token] = _spelled(text)
        return known


def _spelled(text: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        # An added token is written as it reads.
        return text.encode()


def pieces_of(backend: tokenizers.Tokenizer) -> Pieces | None:
    """The quick way for this tokenizer; None when its decoder does more than join bytes."""
    return Pieces(backend) if isinstance(backend.decoder, decoders.ByteLevel) else None
