"""Whole runs with real SGLang servers: when they can be, and what they are started with."""

from __future__ import annotations

import pytest
from contract.kit import PYTHON

RUN_S = 800.0
"""Deadline of one of them, on two cores that several servers share."""
WHOLE_RUN = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="MILEPOST_SGLANG_PYTHON names no interpreter"),
]

CREATE = "milepost.configs.recipes.lookup.model:create"
FRESH_MODEL = ("--set", f"model.create={CREATE}", "--set", "model.path=")
"""Nothing need be learnt before: random weights, made when the run starts."""


def served_by_sglang(kind: str) -> tuple[str, ...]:
    """Words of the command line that make engines of this kind SGLang's.

    Args:
        kind: `engine`, or `evaluation_engine`.
    """
    settings = ("kind=sglang", f"sglang.python={PYTHON}", "slots=64")
    return tuple(word for each in settings for word in ("--set", f"actors.{kind}.{each}"))
