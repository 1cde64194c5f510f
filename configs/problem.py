"""A fault in a topology, said so that a person can repair it, and the error that carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with its values, where, and what to do. Lower case, no full stop."""

    what: str
    where: str
    """`$.path` of a topology, or a file with its line."""
    remedy: str = ""

    def __str__(self) -> str:
        """All of it in one line."""
        return f"{self.what} at {self.where}" + (f", {self.remedy}" if self.remedy else "")


class ConfigError(ValueError):
    """The user's topology cannot be used. Carries every problem that was found, not the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "an error needs at least one problem"
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
