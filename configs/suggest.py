"""The known name that an unknown one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

ELSEWHERE: Final[dict[str, str]] = {
    "batch_size": "prompts_per_step",
    "global_batch_size": "prompts_per_step",
    "rollout_batch_size": "prompts_per_step",
    "group_size": "samples_per_prompt",
    "n_samples_per_prompt": "samples_per_prompt",
    "num_generations": "samples_per_prompt",
    "num_steps_per_rollout": "minibatches_per_step",
    "learning_rate": "lr",
    "eps_clip": "clip_low",
    "eps_clip_high": "clip_high",
    "max_staleness": "max_weight_staleness",
    "max_response_len": "reply_tokens_max",
    "max_new_tokens": "reply_tokens_max",
    "max_tokens": "reply_tokens_max",
    "max_turns": "turns_max",
    "context_length": "context_tokens_max",
    "hf_checkpoint": "path",
    "max_steps": "steps",
    "num_rollout": "steps",
    "clip_grad": "grad_norm_max",
    "max_grad_norm": "grad_norm_max",
}
"""What a setting is called in other programs, and here."""

_LIKENESS_MIN: Final = 0.4
"""Below it a suggestion would only amuse; the known names are listed instead."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is like it.

    >>> nearest("lag_version_max", ["lag_versions_max", "lr"])
    'lag_versions_max'
    >>> nearest("learning_rate", ["ranks", "lr"])
    'lr'
    >>> nearest("zzz", ["ranks", "lr"])
    """
    names = sorted(known)
    if ELSEWHERE.get(name) in names:
        return ELSEWHERE[name]
    if not names:
        return None
    best = max(names, key=lambda candidate: _likeness(name, candidate))
    return best if _likeness(name, best) >= _LIKENESS_MIN else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: the nearest known one, or else all of them."""
    names = sorted(known)
    likely = nearest(name, names)
    if likely is not None:
        return f"did you mean `{likely}`"
    return "known are " + ", ".join(f"`{each}`" for each in names) if names else "nothing fits here"


def _likeness(name: str, candidate: str) -> float:
    """0 to 1; whole words in common count as much as letters in order."""
    letters = SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
    ours, theirs = set(name.lower().split("_")), set(candidate.lower().split("_"))
    words = len(ours & theirs) / len(ours | theirs)
    return max(letters, words)
