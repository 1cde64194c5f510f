"""Who writes into an archive, and how much of it may be theirs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from milepost.actors.archive.layout import BUFFER, Model
from milepost.configs.spec import ActorSpec

TRAINERS_SHARE: Final = 4
"""The trainer's ranks together get one part of so many; a log-prob takes 4 bytes of the 10 or so
that are written for a sampled token, and prompts have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes."""

    run_folder: Path
    run_id: str
    writer: str
    incarnation: int
    bytes_max: int
    """Of all its files together."""
    model: Model | None = None

    @classmethod
    def of(cls, spec: ActorSpec, model: Model | None = None) -> Author:
        """This process, with its part of `archive.bytes_max`."""
        total = spec.topology.archive.bytes_max
        trainers = total // TRAINERS_SHARE
        ranks = max(1, len(spec.topology.names("trainer")))
        return cls(
            run_folder=Path(spec.run_folder),
            run_id=spec.run_id,
            writer=spec.actor,
            incarnation=spec.incarnation,
            bytes_max=total - trainers if spec.kind == BUFFER else trainers // ranks,
            model=model,
        )
