"""Whether a checkpoint is a mixture of experts: the little of it that a watcher wants to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that families give the number of experts of a layer."""


def has_experts(folder: Path) -> bool:
    """Whether the checkpoint is a mixture of experts, of any architecture.

    A model of text within a larger one has a table of its own (`text_config`).

    Raises:
        FileNotFoundError: no `config.json`.
        ValueError: it is no JSON object.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__} and no JSON object")
    tables = [config]
    while tables:
        table = tables.pop()
        if any(table.get(key) for key in _EXPERTS):
            return True
        tables += [value for value in table.values() if isinstance(value, dict)]
    return False
