"""Whether a dead child is started again: policy as data, decided without a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from milepost.configs.actors import RestartConfig

BACKOFF_FACTOR: Final = 2.0
BACKOFF_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start the next incarnation at `at_s`; `restarts` are the times to remember."""

    at_s: float
    restarts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LetRest:
    """It ended as its policy allows; the run goes on without it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run fails; `why` says which rule ended it."""

    why: str


def decide(
    policy: RestartConfig,
    *,
    clean: bool,
    significant: bool,
    restarts: tuple[float, ...],
    now_s: float,
) -> Again | LetRest | GiveUp:
    """Judge one death.

    Args:
        policy: the actor's `restart` table.
        clean: the process ended with exit code 0.
        significant: the run waits for this actor's `WorkFinished`, which has not come.
        restarts: monotonic times of earlier restarts, oldest first.
        now_s: monotonic time of the death.

    Returns:
        `Again` with a back-off that doubles with each restart inside the window, at most
        `BACKOFF_MAX_S`; `LetRest` for a clean end of a transient actor nobody waits for.
    """
    if policy.policy == "temporary":
        return GiveUp("")
    if policy.policy == "transient" and clean:
        if significant:
            return GiveUp("the run waits for its work")
        return LetRest()
    recent = tuple(at_s for at_s in restarts if now_s - at_s < policy.window_s)
    if len(recent) >= policy.restarts_max:
        return GiveUp(
            f"restarted {len(recent)} times within {policy.window_s:g} s,"
            f" restarts_max is {policy.restarts_max}"
        )
    backoff_s = min(policy.backoff_s * BACKOFF_FACTOR ** len(recent), BACKOFF_MAX_S)
    return Again(now_s + backoff_s, (*recent, now_s))


Decision: TypeAlias = Again | LetRest | GiveUp
