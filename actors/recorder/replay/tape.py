"""A full recording, ready to be played: the lines, their contents, and the spec of the actor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from milepost.actors.effects import (
    Answered,
    Event,
    Received,
    Request,
    Taken,
    Unanswered,
    Woken,
    WorkDone,
)
from milepost.actors.recorder.content import NotRecordable, value_of
from milepost.actors.recorder.lines import START, Line
from milepost.actors.recorder.payloads import read_payloads
from milepost.actors.recorder.reading import Recording, read_recordings
from milepost.actors.recorder.recorder import FOLDER
from milepost.configs.dump import topology_hash
from milepost.configs.load import load_topology
from milepost.configs.problem import ConfigError
from milepost.configs.spec import ActorSpec
from milepost.messages.schema import fingerprint

MARKS: Final = ("step", "version", "line")
"""What `--until` counts by."""


class ReplayRefused(RuntimeError):
    """This recording cannot be replayed, or not so far; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Until:
    """Where to stop.

    Attributes:
        mark: one of `MARKS`; empty: at the end.
        value: the last line that speaks of this step or version is the last one replayed.
    """

    mark: str = ""
    value: int = 0

    @classmethod
    def of(cls, text: str) -> Until:
        """`step=12`.

        Raises:
            ReplayRefused: it is nothing to stop at.
        """
        mark, _, value = text.partition("=")
        if not text:
            return cls()
        if mark not in MARKS or not value.isdecimal():
            raise ReplayRefused(f"--until {text}: write step=N, version=N or line=N")
        return cls(mark, int(value))

    def cut(self, lines: list[Line]) -> list[Line]:
        """The lines up to there.

        Raises:
            ReplayRefused: no line speaks of it; says which there are.
        """
        if not self.mark:
            return lines
        told = [self._told(line) for line in lines]
        last = max((at for at, values in enumerate(told) if self.value in values), default=-1)
        if last < 0:
            known = sorted({value for values in told for value in values})
            there = f"{known[0]} to {known[-1]}" if known else f"no {self.mark} at all"
            raise ReplayRefused(f"no line speaks of {self.mark} {self.value}, there is {there}")
        return lines[: last + 1]

    def _told(self, line: Line) -> set[int]:
        if self.mark == "line":
            return {line.number}
        facts = (line.facts, *(each.facts for each in line.decisions))
        return {each[self.mark] for each in facts if self.mark in each}


@dataclass(slots=True)
class Tape:
    """What is replayed.

    Attributes:
        spec: as the actor had it, without addresses.
        lines: from the first one, without a gap, up to where it shall end.
        contents: by address.
        damaged: a line about the file of contents, if it is not whole.
        unread: a line about each file of the actor that cannot be read; a later life may be there.
        recorded: the same lines, and those behind the end.
    """

    spec: ActorSpec
    lines: list[Line]
    contents: dict[int, bytes]
    damaged: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    recorded: list[Line] = field(default_factory=list)

    @classmethod
    def read(cls, run_folder: Path, actor: str, until: Until) -> Tape:
        """The last life of the actor in this run folder that can be read.

        Raises:
            ReplayRefused: it is not there, not whole, or not of this commit or topology.
        """
        folder = run_folder / FOLDER
        unreadable: dict[Path, str] = {}
        found = read_recordings(folder, actor, unreadable) if actor else []
        if not found and unreadable:
            raise ReplayRefused("; ".join(unreadable.values()))
        if not found:
            names = sorted({each.actor for each in read_recordings(folder, unreadable={})})
            there = f"there are {', '.join(names)}" if names else f"{folder} holds no recording"
            raise ReplayRefused(f"nothing was recorded of {actor!r}, {there}")
        # A resumed run keeps the recordings of its life before.
        recording = max(found, key=lambda each: float(each.about["started_s"]))
        about = recording.about
        spec = _spec(run_folder, recording)
        _check(recording, spec)
        stem = f"{actor}-{about['incarnation']}"
        # Lines that are missing show by their numbers, but for the last ones: those are in the ring
        # of this life. Its pins have nothing behind them, and other lives are not replayed.
        ring = unreadable.get(folder / f"{stem}.ring")
        lines = _whole(recording, [*recording.damaged, *([ring] if ring else [])], until)
        damaged: list[str] = []
        contents = dict(read_payloads(folder / f"{stem}.payloads", damaged))
        unread = list(unreadable.values())
        return cls(spec, until.cut(lines), contents, damaged, unread, recorded=lines)

    def event(self, line: Line) -> Event | None:
        """What the core was told; None: to start.

        Raises:
            ReplayRefused: its content was not kept.
        """
        content: Any = self._content(line) if line.type else None
        match line.kind:
            case "received":
                request = Request(line.source, line.message_id) if line.wants_reply else None
                return Received(line.source, content, request)
            case "answered":
                return Answered(line.key, line.source, content)
            case "unanswered":
                return Unanswered(line.key, line.source, line.error)
            case "taken":
                return Taken(line.key)
            case "woken":
                return Woken(line.key)
            case "done":
                return WorkDone(line.key, content, "" if content is not None else line.error)
            case _:
                assert line.kind == START, line.kind
                return None

    def _content(self, line: Line) -> Any:
        content = self.contents.get(line.digest)
        if content is None:
            full = "system.recorder.payload_bytes_max was reached, or the disk was slow"
            why = line.error or "; ".join(self.damaged) or full
            raise ReplayRefused(
                f"the {line.type} of line {line.number} is not there ({why}); "
                f"--until line={line.number - 1} goes as far as it can"
            )
        try:
            return value_of(content)
        except (NotRecordable, TypeError, ValueError, AttributeError, ImportError) as error:
            raise ReplayRefused(f"line {line.number} cannot be read: {error}") from error


def _spec(run_folder: Path, recording: Recording) -> ActorSpec:
    about = recording.about
    path = run_folder / "topology.toml"
    try:
        topology = load_topology(str(path))
    except (ConfigError, OSError) as error:
        raise ReplayRefused(f"{path} cannot be read: {error}") from error
    if topology_hash(topology) != about["topology_hash"]:
        raise ReplayRefused(f"{path} is not the topology that {recording.name} ran with")
    return ActorSpec(
        actor=about["actor"],
        kind=about["kind"],
        index=about["index"],
        incarnation=about["incarnation"],
        run_id=about["run_id"],
        run_folder=str(run_folder),
        addresses={},
        topology=topology,
        topology_hash=about["topology_hash"],
        resume_step=about["resume_step"],
    )


def _whole(recording: Recording, damaged: list[str], until: Until) -> list[Line]:
    """The lines up to the first that is missing.

    Raises:
        ReplayRefused: one is, or may be, before the end that is asked for.
    """
    lines = recording.lines
    count = next((at for at, line in enumerate(lines) if line.number != at), len(lines))
    is_whole = count == len(lines) and not damaged
    if is_whole or (until.mark == "line" and until.value < count):
        return lines[:count]
    why = "; ".join(damaged) or f"line {count} is missing"
    raise ReplayRefused(
        f"the recording of {recording.name} is not whole ({why}): "
        f"--until line={count - 1} goes as far as it can"
    )


def _check(recording: Recording, spec: ActorSpec) -> None:
    """Refuse what does not begin at the beginning."""
    name, lines = recording.name, recording.lines
    if not recording.about["payloads"]:
        raise ReplayRefused(
            f"{name} was recorded without contents: set system.recorder.payloads = true before the "
            f"run; `milepost trace` needs none"
        )
    if recording.about["schema"] != fingerprint():
        raise ReplayRefused(f"{name} was recorded by another commit: its messages are not these")
    if not lines:
        raise ReplayRefused(f"{name} was never told anything")
    if lines[0].number > 0:
        bytes_now = spec.topology.system.recorder.ring_bytes
        raise ReplayRefused(
            f"the recording of {name} begins at line {lines[0].number} and has {len(lines)} lines, "
            f"the ones before were overwritten: raise system.recorder.ring_bytes = {bytes_now}"
        )
