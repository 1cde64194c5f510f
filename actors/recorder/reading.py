"""Recordings of a run as they lie on the disk: rings, also of killed processes, and pins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from milepost.actors.recorder.describing import names_of
from milepost.actors.recorder.lines import Line, decode_lines
from milepost.actors.recorder.pins import read_pin
from milepost.actors.recorder.ring import RingDamaged, look_at, read_file
from milepost.messages.schema import fingerprint


class _About(msgspec.Struct):
    """What a reader relies on in the header of a ring."""

    actor: str
    kind: str
    index: int
    incarnation: int
    run_id: str
    resume_step: int | None
    topology_hash: str
    schema: str
    payloads: bool
    host: str
    started_s: float


@dataclass(slots=True)
class Recording:
    """What is known of one incarnation of one actor.

    Attributes:
        about: `actor`, `kind`, `incarnation`, `host`, ... as its writer said.
        lines: in order; numbers may begin above 0 and have gaps.
        pins: why each pin was written, by its file.
        damaged: files with places that are no lines any more, and where.
        start: which start of the run, from 1; 0: they need not be told apart.
    """

    about: dict[str, Any]
    lines: list[Line]
    pins: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    start: int = 0

    @property
    def run_id(self) -> str:
        """Of the start of the run that it is of."""
        return str(self.about["run_id"])

    @property
    def actor(self) -> str:
        """Whose."""
        return str(self.about["actor"])

    @property
    def name(self) -> str:
        """`buffer`, or `engine-0 (start 2, life 2)`."""
        again = self.about["incarnation"]
        words = [f"start {self.start}"] * bool(self.start) + [f"life {again + 1}"] * bool(again)
        return f"{self.actor} ({', '.join(words)})" if words else self.actor


def starts_of(recordings: Iterable[Recording]) -> dict[str, int]:
    """Run ids in the order in which they began, from 0; a run that is resumed gets a new one."""
    began: dict[str, float] = {}
    for each in recordings:
        started_s = float(each.about["started_s"])
        began[each.run_id] = min(started_s, began.get(each.run_id, started_s))
    return {run_id: number for number, run_id in enumerate(sorted(began, key=began.__getitem__))}


def tell_apart(recordings: Collection[Recording]) -> None:
    """Name the start of the run in each of their names, if they are of several."""
    starts = starts_of(recordings)
    for each in recordings:
        each.start = starts[each.run_id] + 1 if len(starts) > 1 else 0


def read_recordings(
    folder: Path, actor: str = "", unreadable: dict[Path, str] | None = None
) -> list[Recording]:
    """Every recording in `RUN/recorder`, by actor and life; rings and pins of one life are joined.

    Args:
        folder: made by `Recorder.open`.
        actor: of this one only.
        unreadable: gets each file that cannot be read, and why; without it the first one raises.

    Raises:
        RingDamaged: a file is none of ours, or of another commit.
        OSError: one cannot be read.
    """
    found: dict[tuple[Any, ...], Recording] = {}
    paths = sorted((*folder.glob("*.ring"), *folder.glob("*.zst")), key=lambda path: path.name)
    for path in paths:
        if actor and not path.name.startswith(f"{actor}-"):
            continue
        try:
            one = read_recording(path)
        except (RingDamaged, OSError) as error:
            if unreadable is None:
                raise
            unreadable[path] = str(error)
            continue
        if actor and one.actor != actor:
            continue
        key = (one.actor, one.run_id, one.about["incarnation"])
        known = found.setdefault(key, one)
        if known is not one:
            known.lines = list(_joined(known.lines, one.lines))
            known.pins.update(one.pins)
            known.damaged += one.damaged
    return list(found.values())


def read_recording(path: Path) -> Recording:
    """One file: a ring or a pin.

    Raises:
        RingDamaged: it is none of ours, or of another commit.
        OSError: it cannot be read.
    """
    pins: dict[str, str] = {}
    try:
        if path.suffix == ".zst":
            reason, image = read_pin(path.read_bytes())
            pins[path.name] = reason
            found = look_at(image)
        else:
            found = read_file(path)
        msgspec.convert(found.about, _About)
        damaged = [f"{path} is damaged in {found.damage}"] if found.damage else []
        return Recording(found.about, read_lines(found.about, found.records), pins, damaged)
    except (RingDamaged, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RingDamaged(f"{path}: {error}") from error


def read_lines(about: Mapping[str, Any], records: Iterable[bytes]) -> list[Line]:
    """Lines of one recording.

    Args:
        about: what it is of. The fields of messages have no names in lines of another commit.
        records: as they stand in the ring.

    Raises:
        msgspec.DecodeError: they were written by another commit.
    """
    named = names_of if about["schema"] == fingerprint() else _nothing
    return [line for record in records for line in decode_lines(record, named)]


def _nothing(_kind: str) -> tuple[str, ...]:
    return ()


def _joined(some: Iterable[Line], others: Iterable[Line]) -> Iterator[Line]:
    by_number = {line.number: line for line in (*some, *others)}
    for number in sorted(by_number):
        yield by_number[number]
