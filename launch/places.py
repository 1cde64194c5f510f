"""The places where the actors of a run can be started, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from milepost.configs.problem import ConfigError, Problem
from milepost.supervisor.places import LocalPlace, Place

PLACES: Final[dict[str, Callable[[], Place]]] = {"local": LocalPlace}
"""Name -> factory. `ssh`, `slurm` and `kubernetes` are to implement the same `Place`."""


def open_place(name: str) -> Place:
    """The place of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PLACES:
        known = ", ".join(sorted(PLACES))
        raise ConfigError([Problem(f"no place {name!r}", "--place", f"there is: {known}")])
    return PLACES[name]()
