"""What the evaluator's core orders from its hands."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.effects import Work
from milepost.actors.evaluator.records import Record
from milepost.messages.evaluator import Transcript


@dataclass(frozen=True, slots=True)
class WriteRecord(Work):
    """Append to the journal; the end of it survives a power cut."""

    record: Record


@dataclass(frozen=True, slots=True)
class SaveTranscripts(Work):
    """Append conversations to RUN/transcripts.jsonl, for people to read."""

    transcripts: tuple[Transcript, ...]


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(Work):
    """Keep a checkpoint's Hugging Face folder in place, unless it is; the result is where."""

    version: int
    folder: str
    """Of the checkpoint."""


@dataclass(frozen=True, slots=True)
class MeasureCheckpoint(Work):
    """Have the user's class measure a folder; the result is a `Measured`."""

    version: int
    checkpoint: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class RemoveCheckpoint(Work):
    """What was kept of a checkpoint has served."""

    version: int
