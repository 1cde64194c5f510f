"""Whether a checkpoint is a mixture of experts: the little of it that a watcher wants to know."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from milepost.actors.engine.settings import read_settings

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that families give the number of experts of a layer."""


def has_experts(folder: Path) -> bool:
    """Whether the checkpoint is a mixture of experts, of any architecture.

    A model of text within a larger one has a table of its own (`text_config`).

    Raises:
        FileNotFoundError: no `config.json`.
        SettingsDamaged: it is no JSON object that can be read.
    """
    tables = [read_settings(folder)]
    while tables:
        table = tables.pop()
        if any(table.get(key) for key in _EXPERTS):
            return True
        tables += [value for value in table.values() if isinstance(value, dict)]
    return False
