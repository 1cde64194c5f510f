"""What the rollout actor's journal says: one record for each change of the ledger.

The journal lies in RUN/journal/rollout, records as JSON. Records are written in order, beside the
messages that follow from them, so a killed process may lose its last few. That costs nothing: the
buffer and the trainer's checkpoint name what went out all the same, and the rest goes out again
under its old name. They are synced to disk with each checkpoint.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Issued(_Record, frozen=True, kw_only=True):
    """A group was opened for the prompt at `position`; `retry` counts re-issues of the prompt."""

    group: str
    position: int
    retry: int = 0


class Stored(_Record, frozen=True, kw_only=True):
    """The buffer holds these groups, whole."""

    groups: tuple[str, ...]


class Lost(_Record, frozen=True, kw_only=True):
    """These groups are not in the buffer after all: open again."""

    groups: tuple[str, ...]


class Recalled(_Record, frozen=True, kw_only=True):
    """These open groups have nothing anywhere: they count as not issued, and go out again."""

    groups: tuple[str, ...]


class Dropped(_Record, frozen=True, kw_only=True):
    """The group will not be trained. With `again`, its prompt is issued as a new group."""

    group: str
    reason: str
    again: bool
    consumed: bool = False
    """Its credit is spent, see `GroupDropped`."""


class Trained(_Record, frozen=True, kw_only=True):
    """These groups were trained; `step` is the version that came out of it."""

    groups: tuple[str, ...]
    step: int


class Checkpointed(_Record, frozen=True, kw_only=True):
    """What was trained up to `step` stays trained whatever happens."""

    step: int


class Resumed(_Record, frozen=True, kw_only=True):
    """The run went on from the checkpoint of `step`: later training is void."""

    step: int


class Snapshot(_Record, frozen=True, kw_only=True):
    """The whole ledger at once; a compacted journal begins with it."""

    position: int
    num_issued: int
    num_trained_before: int
    """Trained groups whose names are forgotten."""
    num_spent_drops: int
    dropped: dict[str, int]
    open: dict[str, tuple[int, int]]
    """Group -> (position, retry)."""
    stored: dict[str, tuple[int, int]]
    trained: dict[str, tuple[int, int, int]]
    """Group -> (position, retry, step), since the checkpoint before the last one."""
    again: tuple[tuple[int, int], ...]
    checkpoints: tuple[int, ...]
    trained_through: int = 0
    """Every group trained up to this version is known."""
    trained_ahead: tuple[int, ...] = ()
    """Later versions whose groups are known, too."""


Record: TypeAlias = (
    Issued | Stored | Lost | Recalled | Dropped | Trained | Checkpointed | Resumed | Snapshot
)

_decoder = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One JSON object."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """The inverse of `encode_record`.

    Raises:
        msgspec.DecodeError: not a record of this version.
    """
    return _decoder.decode(data)
