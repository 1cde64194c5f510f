"""The quick way from text to tokens gives what the library gives, or is not taken.

Every token that an engine is sent goes through it: one that differs would train another text than
the one that was said.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers

from milepost.actors.session.text import words as words_module
from milepost.actors.session.text.tokenizer import LONG_CHARS, Tokenizer
from milepost.actors.session.text.words import CUTS, Words, words_of

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|im", "<tool>")
TEXTS = (
    "it's what they'll say: the pet of kai is an owl, isn't it? I'd say we've 1234 of them.",
    'def look_up(name: str) -> dict:\n    return {"name": name, "pets": [1, 22, 333]}\n',
    "WE'RE HERE\r\n\r\n   there\t\ttoo ... --- !!\n\n  ",
)
PIECES = ("'S", "'ll", " kai", "owl", "  ", "\n", "\r\n", "\t", "12", "...", '"', "\x00", *SPECIAL)
ascii_texts = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=60),
    st.lists(st.sampled_from((*PIECES, *TEXTS)), max_size=12).map("".join),
)


def backend_of(cut: str, **changes: Any) -> tokenizers.Tokenizer:
    """A tokenizer with some hundred merges, that cuts like this."""
    backend = tokenizers.Tokenizer(models.BPE(dropout=changes.get("dropout")))
    backend.normalizer = changes.get("normalizer", normalizers.NFC())
    steps = [
        pre_tokenizers.Split(Regex(cut), behavior=changes.get("behavior", "isolated")),
        pre_tokenizers.ByteLevel(add_prefix_space=changes.get("space", False), use_regex=False),
    ]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.post_processor = processors.ByteLevel(trim_offsets=changes.get("trims", False))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=alphabet, special_tokens=[]
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    if "added" in changes:
        backend.add_tokens([changes["added"]])
    return backend


@cache
def known(cut: str) -> tuple[Words, tokenizers.Tokenizer]:
    """The quick way and the library's."""
    backend = backend_of(cut)
    words = words_of(backend)
    assert words is not None, cut
    return words, backend


@pytest.mark.parametrize("cut", CUTS)
@given(text=ascii_texts, place=st.integers(0, 80))
def test_every_text_becomes_the_tokens_that_the_library_makes(
    cut: str, text: str, place: int
) -> None:
    words, backend = known(cut)
    encoding = backend.encode(text, add_special_tokens=False)
    assert words.encode(text).tolist() == encoding.ids
    places = sorted({min(place, len(text)), len(text) // 2, len(text)})
    token_ids, tokens = words.encode_with_places(text, places)
    assert token_ids.tolist() == encoding.ids
    starts = [start for start, _end in encoding.offsets]
    first = [sum(start < place for start in starts) for place in places]
    assert tokens == first, "the first token that starts there, or behind it"


def test_words_are_remembered_and_forgotten_and_stay_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded, whatever is said."""
    monkeypatch.setattr(words_module, "WORDS_MAX", 8)
    words, backend = words_of(backend_of(next(iter(CUTS)))), backend_of(next(iter(CUTS)))
    assert words is not None
    for text in TEXTS * 3:
        assert words.encode(text).tolist() == backend.encode(text).ids
        assert len(words._known) <= 8
    words.encode("x" * 1000)
    assert all(len(word) <= words_module.WORD_CHARS_MAX for word in words._known)


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0.1},
        {"normalizer": normalizers.Lowercase()},
        {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])},
        {"behavior": "removed"},
        {"space": True},
        {"trims": True},
        {"added": AddedToken("<x>", normalized=False, lstrip=True)},
        {"added": AddedToken("<x>", normalized=True)},
        {"added": AddedToken("<x>", normalized=False, single_word=True)},
    ],
)
def test_a_tokenizer_of_another_kind_goes_the_library_s_way(changes: dict[str, Any]) -> None:
    """Nothing is guessed: what was not written down and proven is left alone."""
    assert words_of(backend_of(next(iter(CUTS)), **changes)) is None


def test_an_unknown_cut_and_an_unknown_model_go_the_library_s_way() -> None:
    assert words_of(backend_of(r"\p{L}+|\P{L}+")) is None
    backend = backend_of(next(iter(CUTS)))
    backend.model = models.WordLevel({"a": 0}, unk_token="a")
    assert words_of(backend) is None


def test_a_cut_that_was_written_down_wrongly_is_found_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ways are compared at every border of two kinds of characters."""
    (cut, _), (_, other) = CUTS.items()
    monkeypatch.setattr(words_module, "CUTS", {cut: other})
    assert words_of(backend_of(cut)) is None


def test_long_texts_and_other_alphabets_are_left_to_the_library() -> None:
    """There it lets other threads run, and knows what a letter is."""
    _, backend = known(next(iter(CUTS)))
    tokenizer = Tokenizer(backend, content_hash="h", named_tokens={})
    words = tokenizer._words
    assert words is not None
    for text in ("käse, brot", "猫", "x" * (LONG_CHARS + 1)):
        assert tokenizer.encode(text).tolist() == backend.encode(text).ids
        assert len(words._known) == len(SPECIAL), "nothing of it went through the memory"
    assert tokenizer.encode("cheese is good").tolist() == backend.encode("cheese is good").ids
    assert len(words._known) > len(SPECIAL)
