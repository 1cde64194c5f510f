"""Whether all actors found the same model: facts of READY that must be equal.

Two processes that load different tokenizers or vocabularies work for hours, and train on tokens
that mean something else on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

AGREED: Final = ("tokenizer_hash", "template_hash", "vocabulary", "model_hash")
"""Facts that are equal in every actor that reports them; an empty one is no report."""


def disagreement(facts_of: Mapping[str, Mapping[str, Any]]) -> str:
    """The first fact on which actors differ, with who says what; empty when they agree.

    Args:
        facts_of: actor -> facts of its READY.
    """
    for name in AGREED:
        said: dict[Any, list[str]] = {}
        for actor, facts in facts_of.items():
            if value := facts.get(name):
                said.setdefault(value, []).append(actor)
        if len(said) > 1:
            words = "; ".join(f"{', '.join(who)}: {value}" for value, who in said.items())
            return f"actors disagree on {name}: {words}; they must load the same model folder"
    return ""
