"""The same arithmetic as an environment of verifiers: one question, an exact answer."""

from __future__ import annotations

from random import Random
from typing import Any

import verifiers
from datasets import Dataset

QUESTION = "State the final answer to the following arithmetic problem: {} ="
"""As reasoning-gym asks it."""
ROWS = 2048


def load_environment(seed: int = 0) -> Any:
    """A single-turn environment over sums and differences of two digits."""
    rubric = verifiers.Rubric(funcs=[is_right], weights=[1.0])
    return verifiers.SingleTurnEnv(dataset=_rows(seed), eval_dataset=_rows(seed + 1), rubric=rubric)


def is_right(completion: list[Any], answer: str) -> float:
    """1 for the answer and nothing else."""
    said = completion[-1]
    text = said["content"] if isinstance(said, dict) else said.content
    return float(str(text).strip() == answer)


def _rows(seed: int) -> Any:
    random, rows = Random(seed), []
    for _ in range(ROWS):
        left, right, sign = random.randint(0, 9), random.randint(0, 9), random.choice("+-")
        answer = left + right if sign == "+" else left - right
        rows.append({"question": QUESTION.format(f"{left} {sign} {right}"), "answer": str(answer)})
    return Dataset.from_list(rows)
