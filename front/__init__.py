"""Milepost: reinforcement-learning post-training of language-model agents, as a system of actors.

What the author of an agent needs has its short name here: `milepost.Agent`. Each is imported when
it is first asked for, so that `import milepost` costs nothing and pulls nothing in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "milepost":
    raise ImportError("import milepost, not front: two names would mean two copies of each class")

if TYPE_CHECKING:
    from milepost.actors.agent import (
        Agent,
        Call,
        ChatError,
        Episode,
        EpisodeStopped,
        LimitReached,
        Prompt,
        Purpose,
        Reply,
        RequestRefused,
        RewardInput,
        RewardResult,
        ServiceFailed,
    )
    from milepost.actors.buffer.candidates import Candidate
    from milepost.actors.evaluator.external import EvaluationSkipped, ExternalEvaluation

__all__ = [
    "Agent",
    "Call",
    "Candidate",
    "ChatError",
    "Episode",
    "EpisodeStopped",
    "EvaluationSkipped",
    "ExternalEvaluation",
    "LimitReached",
    "Prompt",
    "Purpose",
    "Reply",
    "RequestRefused",
    "RewardInput",
    "RewardResult",
    "ServiceFailed",
]


_HOMES = {
    "Candidate": "milepost.actors.buffer.candidates",
    "EvaluationSkipped": "milepost.actors.evaluator.external",
    "ExternalEvaluation": "milepost.actors.evaluator.external",
}
"""Where names live that are not of `milepost.actors.agent`."""


def __getattr__(name: str) -> object:
    """The class of this name, from where it is defined."""
    if name not in __all__:
        raise AttributeError(f"module 'milepost' has no attribute {name!r}")
    home = _HOMES.get(name, "milepost.actors.agent")
    return vars(import_module(home))[name]


def __dir__() -> list[str]:
    """The short names, and the rooms imported so far."""
    return sorted({*globals(), *__all__})
