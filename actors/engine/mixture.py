"""Whether a checkpoint is a mixture of experts: the little of it that a watcher wants to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that families give the number of experts of a layer."""


def has_experts(folder: Path) -> bool:
    """Whether the checkpoint is a mixture of experts, of any architecture.

    Raises:
        FileNotFoundError: no `config.json`.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return any(config.get(key) for key in _EXPERTS)
