r"""A byte-level BPE tokenizer of a few hundred entries, trained on the spot on a task's text.

Two choices make conversations short, and short conversations make the quick start quick:

- No word splitting. A merge may reach over spaces and quotes, so that the fixed part of a tool
  call, `\n{"name": "lookup", "arguments": {"name": "`, is one token.
- A task's values (names, fields, directions) are added tokens, whole wherever they stand. The
  model copies one token instead of spelling a name.

The special tokens are Qwen3's, under Qwen3's chat and tool-call syntax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from milepost.messages.shared import Prompt

PADDING = "<|endoftext|>"
STOP = "<|im_end|>"
CONTROL = (PADDING, "<|im_start|>", STOP)
MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Visible in decoded text, as in Qwen3: a parser finds tool calls by them."""


def chat_template() -> str:
    """The template: Qwen3's syntax, tools listed as `name(parameter, ...)`, append-only."""
    return files(__package__).joinpath("chat_template.jinja").read_text(encoding="utf-8")


def render(prompt: Prompt, *, generate: bool = False) -> str:
    """A prompt's messages as text; with `generate`, up to where the assistant begins to speak."""
    return _compiled().render(
        messages=prompt.messages, tools=prompt.tools, add_generation_prompt=generate
    )


@cache
def _compiled() -> jinja2.Template:
    return jinja2.Environment(autoescape=False).from_string(chat_template())  # noqa: S701  no HTML


def train_tokenizer(texts: Iterable[str], values: Sequence[str], *, size: int) -> Tokenizer:
    """Train the tokenizer on rendered conversations.

    Args:
        texts: rendered conversations.
        values: the task's words that become one token each.
        size: entries in all: 256 bytes, special tokens, values, and merges for the rest.

    Raises:
        ValueError: `size` leaves no room for a merge, or the texts do not yield enough of them.
    """
    # A value of one byte is an entry of the alphabet already.
    num_words = len(CONTROL) + len(MARKUP) + sum(len(value.encode()) > 1 for value in values)
    fixed = 256 + num_words
    if size <= fixed:
        raise ValueError(
            f"a tokenizer of {size} entries has no room: {fixed} are fixed; raise size"
        )
    cut = re.compile("|".join(re.escape(word) for word in (*CONTROL, *MARKUP, *values)))
    pieces = (piece for text in texts for piece in cut.split(text) if piece)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    merges = BpeTrainer(
        vocab_size=size - num_words,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces, merges)
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*MARKUP, *values)])
    if tokenizer.get_vocab_size() != size:
        raise ValueError(
            f"the texts yield {tokenizer.get_vocab_size()} entries, not {size}: lower size or "
            "give more varied texts"
        )
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, context_tokens_max: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        # The generic class keeps tokenizer.json as it is; Qwen's own would put back word splitting.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PADDING,
        "eos_token": STOP,
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens_max,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template(), encoding="utf-8")
