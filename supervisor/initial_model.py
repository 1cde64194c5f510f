"""RUN/initial_model, the fresh checkpoint that a run started from, and how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from milepost.configs.run import ModelConfig

INITIAL_MODEL: Final = "initial_model"
"""Folder inside the run's."""
NOTE: Final = "initial_model.json"
"""File beside it."""


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides the checkpoint, besides the seed of the run."""

    create: str
    create_options: dict[str, Any]

    @classmethod
    def by(cls, model: ModelConfig) -> Made:
        """As it reads when it was written down: JSON has no dates, for one."""
        asked = cls(model.create, model.create_options)
        return msgspec.json.decode(msgspec.json.encode(asked), type=cls)


def note_made(run_folder: Path, model: ModelConfig) -> None:
    """Write down how the checkpoint is made; before it has its name, so that none lacks a note."""
    growing = run_folder / f"{NOTE}.growing"
    growing.write_bytes(msgspec.json.encode(Made.by(model)))
    growing.replace(run_folder / NOTE)


def noted_made(run_folder: Path) -> Made | None:
    """How it was made; None where nobody noted that, as runs of before do not.

    Raises:
        OSError, msgspec.MsgspecError: the note cannot be read.
    """
    path = run_folder / NOTE
    return msgspec.json.decode(path.read_bytes(), type=Made) if path.exists() else None
