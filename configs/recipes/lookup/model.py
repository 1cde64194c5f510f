"""The fresh checkpoint that the warm-up of directory look-up starts from."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from milepost.configs.recipes.lookup.clerk import demonstrations
from milepost.configs.recipes.lookup.directory import VALUES
from milepost.configs.recipes.tiny.checkpoint import write_checkpoint
from milepost.configs.recipes.tiny.tokenizer import render

TEXTS = 500
"""Conversations the tokenizer is trained on."""


def create(folder: str, seed: int, options: dict[str, Any]) -> None:
    """Write an untrained checkpoint with its tokenizer (`model.create` of the recipe).

    Args:
        folder: made when it is missing.
        seed: of the weights.
        options: sizes, the fields of `milepost.configs.recipes.tiny.checkpoint.Shape`.

    Raises:
        msgspec.ValidationError: an option that is no such field.
    """
    # The tokenizer does not depend on the run's seed: two seeds differ in weights, not in text.
    texts = [render(prompt) for prompt in islice(demonstrations("train", 0, {}), TEXTS)]
    write_checkpoint(Path(folder), seed, texts, VALUES, options)
