"""A renderer for each declared family: a byte-level tokenizer with its tokens, and a template."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from milepost.actors.session.families import make_family
from milepost.actors.session.families.table import DECLARATIONS
from milepost.actors.session.text.rendering import Renderer
from milepost.actors.session.text.template import load_template
from milepost.actors.session.text.tokenizer import Tokenizer

FIXTURES = Path(__file__).with_name("templates")
TEMPLATES = {"nemotron3": "qwen3.5", "qwen3": "qwen3_thinking"}
"""Families that are written like another one."""
MORE_TOKENS = {
    "gpt_oss": ("<|constrain|>",),
    "kimi_k2.5": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "llama3": ("<|python_tag|>", "<|begin_of_text|>"),
    "minimax_m2.5": ("]~!b[",),
    "glm": ("[gMASK]", "<sop>"),
}


def byte_tokenizer(special: tuple[str, ...]) -> Tokenizer:
    """Every byte is a token, and so is each of these."""
    words = {word: index for index, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=words, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return Tokenizer(backend, content_hash="h", named_tokens={})


@cache
def family_renderer(name: str) -> Renderer:
    """Of one family, with the fixture of its template, or the one that comes with Milepost."""
    declared = DECLARATIONS[name]
    special = (*declared.frame, *declared.stops, *MORE_TOKENS.get(name, ()))
    return renderer_of(name, byte_tokenizer(tuple(dict.fromkeys(special))))


def renderer_of(name: str, tokenizer: Tokenizer, folder: Path | None = None) -> Renderer:
    """The family on this tokenizer."""
    family = make_family(name, tokenizer)
    options: dict[str, Any] = family.template_options
    if folder is None:
        folder = fixture_folder(name)
    template = load_template(
        folder,
        named_tokens=tokenizer.named_tokens,
        options=options,
        arguments_as_objects=family.arguments_as_objects,
        bundled=family.bundled_template,
    )
    return Renderer(tokenizer, template, family)


@cache
def fixture_folder(name: str) -> Path:
    """A model's folder that has the fixture's template, or none."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="milepost-family-"))
    fixture = FIXTURES / f"{TEMPLATES.get(name, name)}.jinja"
    if fixture.is_file():
        (folder / "chat_template.jinja").write_text(fixture.read_text())
    return folder
