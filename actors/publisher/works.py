"""Long work that the publisher orders, and what comes back. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.actors.effects import Work
from milepost.messages.publisher import BucketReady, VersionReady


@dataclass(frozen=True, slots=True)
class WriteVersion(Work):
    """Write a version as the difference to the confirmed one. Gives a `VersionWritten`."""

    ready: VersionReady
    buckets: tuple[BucketReady, ...]


@dataclass(frozen=True, slots=True)
class ConfirmVersion(Work):
    """Every engine serves this version: the next difference stands on it.

    Attributes:
        oldest: version that some engine may still be sent to.
    """

    version: int
    oldest: int


@dataclass(frozen=True, slots=True)
class VersionWritten:
    """A version is complete on the disk.

    Attributes:
        density: share of all bytes that changed.
        file_bytes: of its files.
        cpu_s: seconds of the encoders' processors.
    """

    density: float
    file_bytes: int
    cpu_s: float
