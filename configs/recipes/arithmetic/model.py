"""The fresh checkpoint that the warm-up of arithmetic starts from."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from milepost.actors.agent.connectors.reasoning_gym import demonstrations
from milepost.configs.recipes.tiny.checkpoint import write_checkpoint
from milepost.configs.recipes.tiny.tokenizer import render

TEXTS = 500
"""Conversations the tokenizer is trained on."""
OPTIONS: dict[str, Any] = {
    "task": "chain_sum",
    "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
VALUES = tuple(str(number) for number in range(-9, 19))
"""Every number that is asked about or is an answer: one token each."""


def create(folder: str, seed: int, options: dict[str, Any]) -> None:
    """Write an untrained checkpoint with its tokenizer (`model.create` of the recipe).

    Args:
        folder: made when it is missing.
        seed: of the weights.
        options: sizes, the fields of `milepost.configs.recipes.tiny.checkpoint.Shape`.

    Raises:
        msgspec.ValidationError: an option that is no such field.
    """
    texts = [render(prompt) for prompt in islice(demonstrations("train", 0, OPTIONS), TEXTS)]
    write_checkpoint(Path(folder), seed, texts, VALUES, options)
