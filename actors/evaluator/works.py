"""What the evaluator's core orders from its hands."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.effects import Work
from milepost.messages.evaluator import Transcript


@dataclass(frozen=True, slots=True)
class SaveTranscripts(Work):
    """Append conversations to RUN/transcripts.jsonl, for people to read."""

    transcripts: tuple[Transcript, ...]


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(Work):
    """Keep a checkpoint's Hugging Face folder in place; the result is where it is kept."""

    version: int
    folder: str
    """Of the checkpoint."""


@dataclass(frozen=True, slots=True)
class MeasureCheckpoint(Work):
    """Have the user's class measure a folder; the result is a `Measured`."""

    version: int
    checkpoint: str
    deadline_s: float
    is_kept: bool
    """The folder is ours, and goes afterwards."""
