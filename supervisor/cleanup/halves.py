"""What a killed writer left half written in the run's folder, as large as what it was to become.

Small files need no care: each draft has one name, and the next one is written over it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from milepost.supervisor.checkpoints import is_whole, named

PARTS: Final = ("checkpoints/.step_*.partial", "evaluation/version_*.part")
"""Written under these names, and renamed when they are whole."""
REPLACED: Final = "checkpoints/.step_*.replaced"
VERSIONS: Final = ("weights/weight_v*", "weights/full_v*")
VERSION_INDEX: Final = "model.safetensors.index.json"
"""Written last into a version of the weights, and removed first."""


def halves_in(run_folder: Path) -> Iterator[Path]:
    """Folders that nobody reads, and nobody will go on to write."""
    for pattern in PARTS:
        yield from run_folder.glob(pattern)
    for aside in run_folder.glob(REPLACED):
        # Until its successor is whole it is the checkpoint, see `put_back`.
        if is_whole(named(aside)):
            yield aside
    for pattern in VERSIONS:
        for version in run_folder.glob(pattern):
            if not (version / VERSION_INDEX).is_file():
                yield version


def remove_halves(run_folder: Path) -> list[str]:
    """Remove them, and say which. No actor of the run may be at work.

    Raises:
        OSError: one of them cannot be removed.
    """
    halves = sorted(halves_in(run_folder))
    for half in halves:
        shutil.rmtree(half)
    return [str(half) for half in halves]
