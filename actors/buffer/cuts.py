"""One batch as the ranks get it, from its cut until it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.buffer.groups import StoredGroup
from milepost.actors.buffer.split import Piece


@dataclass(slots=True)
class Cut:
    """One batch, as it was handed out."""

    step: int
    version: int
    """Number of batches before it: what it is trained on top of."""
    groups: dict[str, StoredGroup]
    world_size: int
    ranks: tuple[tuple[Piece, ...], ...]
    metrics: dict[str, float]
    published: int | None = None
    """The version that ages were judged by."""
    is_trained: bool = False
    is_written: bool = True
    """False until the journal knows of it; no rank is answered before."""
    is_reopened: bool = False
    """A group of it was refused, and no rank has it again since: its groups age as in the queue."""

    num_writes: int = 0
    """Times that it was given to the journal."""

    @property
    def write_key(self) -> str:
        """Key of the work that writes it down, the newest: one before it may still go on."""
        return f"handed/{self.step}/{self.num_writes}"

    def begin_write(self) -> str:
        """Count one more time that it is written down; its key."""
        self.num_writes += 1
        return self.write_key

    @property
    def group_ids(self) -> tuple[str, ...]:
        """All groups of the batch that were not refused."""
        return tuple(self.groups)
