"""What happened to stored groups, as records of the buffer's second journal (RUN/journal/marks)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

GONE_MAX = 65_536


class _Mark(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Handed(_Mark, frozen=True, kw_only=True):
    """These groups are the batch of `step`, trained on top of `version`."""

    step: int
    version: int
    groups: tuple[str, ...]


class Spent(_Mark, frozen=True, kw_only=True):
    """These groups were trained; `version` came out of it."""

    step: int
    version: int
    groups: tuple[str, ...]


class Gone(_Mark, frozen=True, kw_only=True):
    """The group will not be trained. `consumed`: it was in a batch and refused at the door."""

    group: str
    reason: str
    consumed: bool = False


class Covered(_Mark, frozen=True, kw_only=True):
    """A checkpoint of `version` is complete."""

    version: int


class WentOn(_Mark, frozen=True, kw_only=True):
    """The run went on from the checkpoint of `version`: what was trained after it is void."""

    version: int


class Whole(_Mark, frozen=True, kw_only=True):
    """Everything that earlier marks said and that still matters."""

    num_spent_before: int
    trained: dict[str, int]
    gone: dict[str, str]
    handed: tuple[Handed, ...]
    checkpoints: tuple[int, ...]
    version: int


Mark: TypeAlias = Handed | Spent | Gone | Covered | WentOn | Whole

encode_mark = msgspec.json.encode
_decoder = msgspec.json.Decoder(Mark)


def decode_mark(data: bytes) -> Mark:
    """The inverse of `encode_mark`.

    Raises:
        msgspec.DecodeError: not a mark of this version.
    """
    return _decoder.decode(data)


@dataclass(slots=True)
class Fates:
    """What became of groups, by name; the sum of all marks so far."""

    checkpoints_named: int = 2
    num_spent_before: int = 0
    """Spent groups whose names are forgotten."""
    trained: dict[str, int] = field(default_factory=dict)
    """Group -> version that came out of it."""
    gone: dict[str, str] = field(default_factory=dict)
    """Group -> reason; the newest `GONE_MAX`."""
    handed: dict[int, Handed] = field(default_factory=dict)
    """Batches not trained yet, by step."""
    checkpoints: tuple[int, ...] = ()
    version: int = 0
    """Batches trained since the run began."""

    @property
    def num_spent(self) -> int:
        """Groups trained, or refused at the trainer's door, since the run began."""
        return self.num_spent_before + len(self.trained)

    @property
    def oldest_checkpoint(self) -> int:
        """Version below which nothing will be asked for again; -1 without enough checkpoints."""
        full = len(self.checkpoints) >= self.checkpoints_named
        return self.checkpoints[0] if full else -1

    def apply_all(self, marks: Iterable[Mark]) -> None:
        """Apply marks in order."""
        for mark in marks:
            self.apply(mark)

    def apply(self, mark: Mark) -> None:
        """One more mark."""
        match mark:
            case Handed():
                self.handed[mark.step] = mark
            case Spent():
                self.handed.pop(mark.step, None)
                self.trained.update(dict.fromkeys(mark.groups, mark.version))
                self.version = max(self.version, mark.version)
            case Gone():
                self.num_spent_before += mark.consumed
                self.gone[mark.group] = mark.reason
                if len(self.gone) > GONE_MAX:
                    del self.gone[next(iter(self.gone))]
            case Covered():
                self._covered(mark.version)
            case WentOn():
                self.trained = {k: v for k, v in self.trained.items() if v <= mark.version}
                self.checkpoints = tuple(at for at in self.checkpoints if at <= mark.version)
                self.handed.clear()
                self.version = mark.version
            case Whole():
                self.num_spent_before = mark.num_spent_before
                self.trained = dict(mark.trained)
                self.gone = dict(mark.gone)
                self.handed = {each.step: each for each in mark.handed}
                self.checkpoints = mark.checkpoints
                self.version = mark.version

    def _covered(self, version: int) -> None:
        if version in self.checkpoints:
            return
        self.checkpoints = (*self.checkpoints, version)[-self.checkpoints_named :]
        oldest = self.oldest_checkpoint
        forgotten = [name for name, at in self.trained.items() if at <= oldest]
        for name in forgotten:
            del self.trained[name]
        self.num_spent_before += len(forgotten)

    def whole(self) -> Whole:
        """All of it as one mark."""
        return Whole(
            num_spent_before=self.num_spent_before,
            trained=dict(self.trained),
            gone=dict(self.gone),
            handed=tuple(self.handed.values()),
            checkpoints=self.checkpoints,
            version=self.version,
        )
