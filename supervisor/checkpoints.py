"""Which checkpoints a run folder holds: RUN/checkpoints/step_NNNNNN/, whole once meta.json is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FOLDER: Final = "checkpoints"
META: Final = "meta.json"
HUGGING_FACE: Final = "hf"


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Where the checkpoint after this many steps is, or would be."""
    return run_folder / FOLDER / f"step_{step:06d}"


def whole_checkpoints(run_folder: Path) -> tuple[int, ...]:
    """Steps of the checkpoints that can be gone on from, ascending."""
    folders = (run_folder / FOLDER).glob("step_*")
    matches = ((re.fullmatch(r"step_(\d{6,})", path.name), path) for path in folders)
    return tuple(sorted(int(match[1]) for match, path in matches if match and is_whole(path)))


def last_checkpoint(run_folder: Path) -> int | None:
    """Step of the newest whole checkpoint; None when there is none."""
    return max(whole_checkpoints(run_folder), default=None)


def put_back(run_folder: Path) -> None:
    """Give a checkpoint its name again that was being replaced when its writer was killed.

    No trainer may be at work in the folder.
    """
    for aside in set_aside(run_folder):
        aside.rename(named(aside))


def set_aside(run_folder: Path) -> tuple[Path, ...]:
    """Checkpoints without their name: each was being replaced when its writer was killed."""
    found = (run_folder / FOLDER).glob(".step_*.replaced")
    return tuple(sorted(path for path in found if not named(path).exists()))


def named(aside: Path) -> Path:
    """Its place as a checkpoint, for one that was set aside."""
    return aside.with_name(aside.name.removeprefix(".").removesuffix(".replaced"))


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint can be gone on from."""
    # It is written last, by a rename.
    return (folder / META).is_file()
