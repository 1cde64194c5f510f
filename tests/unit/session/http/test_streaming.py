"""A streamed reply: whatever its parts, and whatever the bytes, it reads as the whole one."""

from __future__ import annotations

import random

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models
from unit.session.kit import CALL_TEXT, LOOKUP, STOP, renderer

from milepost.actors.session.families import ReplyDelta
from milepost.actors.session.http.door import merged
from milepost.actors.session.refusal import TurnRefused
from milepost.actors.session.streaming import ReplyStream, TextStream
from milepost.actors.session.text.tokenizer import Tokenizer

TEXTS = [
    "cat",
    f"Let me look.\n{CALL_TEXT}\n{CALL_TEXT}",
    "<think>\nhm\n</think>\n\nÄpfel 🍎🍏 und 日本語",
    f"{CALL_TEXT[:30]} never closed",
    "",
]


def stream_of(text: str) -> tuple[ReplyStream, list[int]]:
    made = renderer()
    token_ids = made.tokenizer.encode(text + STOP).tolist()
    parser = made.family.reply_parser("", turn=0, tools=[LOOKUP])
    return ReplyStream(made.tokenizer.decode, parser, made.family.stop_token_ids), token_ids


def whole(text: str) -> object:
    parser = renderer().family.reply_parser("", turn=0, tools=[LOOKUP])
    parser.feed(text)
    parser.finish()
    return parser.reply()


def told(deltas: list[ReplyDelta]) -> tuple[str, str, list[str]]:
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        [call.arguments for delta in deltas for call in delta.tool_calls],
    )


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(8))
def test_parts_of_any_size_add_up_to_the_reply(text: str, seed: int) -> None:
    """The client goes on with what it was streamed: it must be what is trained."""
    generator = random.Random(seed)
    stream, token_ids = stream_of(text)
    parsed = whole(text)
    deltas: list[ReplyDelta] = []
    start = 0
    while start < len(token_ids) - 1:
        end = min(start + generator.randint(1, 4), len(token_ids) - 1)
        deltas += stream.feed(start, token_ids[start:end])
        start = end
    deltas += stream.finish(token_ids, parsed)  # type: ignore[arg-type]
    expected = [getattr(parsed, name) for name in ("content", "reasoning")]
    assert told(deltas)[:2] == tuple(expected)
    assert told(merged(deltas)) == told(deltas)


def test_a_reply_that_is_begun_again_and_differs_is_refused() -> None:
    """Words that the client has cannot be taken back, and would not be the policy's."""
    stream, token_ids = stream_of("Let me look at the cat.")
    stream.feed(0, token_ids[:4])
    assert stream.feed(0, token_ids[:3]) == [], "the same beginning is no news"
    changed = [token_ids[0] + 1, *token_ids[1:6]]
    with pytest.raises(TurnRefused, match="differs within its first 4 tokens"):
        stream.feed(0, changed)
    with pytest.raises(TurnRefused):
        stream.feed(99, token_ids)


@given(st.text(max_size=60), st.lists(st.integers(1, 5), max_size=40))
def test_text_never_comes_in_half_characters(text: str, sizes: list[int]) -> None:
    """A byte-level token may end in the middle of a character."""
    tokenizer = renderer().tokenizer
    token_ids = tokenizer.encode(text).tolist()
    stream = TextStream(tokenizer.decode)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(stream.feed(token_ids[start : start + size]))
        start += size
    pieces.append(stream.feed(token_ids[start:], final=True))
    assert "".join(pieces) == tokenizer.decode(token_ids)


def byte_fallback() -> Tokenizer:
    """As SentencePiece makes them: words, and bytes for everything else, read run by run."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for word in WORDS:
        vocabulary[word.replace(" ", "\u2581")] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return Tokenizer(backend, content_hash="h", named_tokens={})


WORDS = ("a", " a", " ", "cat")
FALLBACK = byte_fallback()
said = st.lists(st.sampled_from([*WORDS, "🍎", "🍏🍎🍏", "日", "é"]), max_size=9)


@given(said, st.lists(st.integers(1, 5), max_size=40))
def test_a_run_of_bytes_is_read_from_its_beginning(words: list[str], sizes: list[int]) -> None:
    """A decoder that finds half a character at the beginning of a run gives up all of the run."""
    token_ids: list[int] = []
    for word in words:
        token = FALLBACK.token_id(word.replace(" ", "\u2581"))
        token_ids += list(word.encode()) if token is None else [token]
    stream = TextStream(FALLBACK.decode)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(stream.feed(token_ids[start : start + size]))
        start += size
    pieces.append(stream.feed(token_ids[start:], final=True))
    assert "".join(pieces) == FALLBACK.decode(token_ids)


def test_bytes_that_never_become_a_character_are_tried_rarely() -> None:
    """A model that babbles bytes must not cost the square of its babble."""
    calls = []

    def decode(token_ids: object) -> str:
        calls.append(token_ids)
        return "\ufffd"

    stream = TextStream(decode)
    for _ in range(4000):
        assert stream.feed([1]) == ""
    assert len(calls) < 40
