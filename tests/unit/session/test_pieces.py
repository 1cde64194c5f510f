"""The quick way from tokens to text gives what the library gives, or is not taken."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from milepost.actors.session.text.pieces import Pieces, pieces_of

ADDED = ("<|im_end|>", "<｜end｜>", "käse", "Ġ", " a b ")
WORDS = ("th", "the", "Ġthe", "ĊĊ", "Ã¤", "ðŁ")
SIZE = 256 + len(WORDS) + len(ADDED)


def backend_of(decoder: Any) -> tokenizers.Tokenizer:
    """All bytes, some longer tokens, whole and half characters among them, and added ones."""
    spelled = dict.fromkeys((*sorted(pre_tokenizers.ByteLevel.alphabet()), *WORDS))
    vocabulary = {word: number for number, word in enumerate(spelled)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return backend


@cache
def known() -> tuple[Pieces, tokenizers.Tokenizer]:
    """The quick way and the library's."""
    backend = backend_of(decoders.ByteLevel())
    pieces = pieces_of(backend)
    assert pieces is not None
    return pieces, backend


@given(st.lists(st.integers(0, SIZE + 5), max_size=30))
def test_every_list_of_tokens_becomes_the_text_that_the_library_makes(token_ids: list[int]) -> None:
    """Half characters, ids that no token has, and tokens that only look like bytes, too."""
    pieces, backend = known()
    assert pieces.decode(token_ids) == backend.decode(token_ids, skip_special_tokens=False)


@given(st.text(max_size=20))
def test_what_is_written_byte_for_byte_comes_back(text: str) -> None:
    pieces, backend = known()
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = "".join(word for word, _place in bytes_of.pre_tokenize_str(text))
    token_ids = [backend.token_to_id(character) or 0 for character in spelled]
    # The bare byte of a space is spelled as an added token here.
    if text and "Ġ" not in spelled:
        assert pieces.decode(token_ids) == text


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
    ],
)
def test_another_decoder_goes_the_library_s_way(decoder: Any) -> None:
    """It may strip, join with spaces, or do what nobody has looked at."""
    assert pieces_of(backend_of(decoder)) is None
