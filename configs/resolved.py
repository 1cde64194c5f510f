"""The topology that a run wrote down: checked when it was, so it is only read now."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from milepost.configs.topology import Topology


def read_resolved(path: Path) -> Topology:
    """The topology in a file that `dump_topology` wrote, an eighth of the time of `load_topology`.

    Raises:
        ConfigError: it cannot be read, or is no topology; with every problem, as `load_topology`.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Topology)
    except (OSError, ValueError, msgspec.MsgspecError):
        from milepost.configs.load import load_topology

        return load_topology(str(path.absolute()))
