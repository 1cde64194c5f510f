"""The files of a run, read as they grow: metrics, events, logs, how it ended. Blocking.

Read from disk and not asked of the supervisor, so that a history of any length costs the run
nothing, and is still there when the supervisor is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import orjson
from msgspec import Struct

from milepost.actors.engine.mixture import has_experts
from milepost.configs.actors import BufferConfig, PublisherConfig
from milepost.configs.resolved import read_resolved
from milepost.configs.run import Mode
from milepost.configs.topology import Topology
from milepost.launch.monitor.updates import About, Ended, Logged, Recorded
from milepost.supervisor.cleanup.unfinished import EVENTS, METRICS, OPEN_STEP, RUN_FILE, SUMMARY
from milepost.supervisor.logs import last_lines, log_path

PIECE_BYTES: Final = 4 << 20
"""Read at once; a long history comes in several pieces. No line may be longer."""
LOG_LINES: Final = 200


class Tail:
    """Whole lines of a JSONL file, each once; begins again when the file was written anew.

    Attributes:
        left_out: lines longer than a piece, which are passed over; whoever tells of them counts
            them down.
    """

    def __init__(self, path: Path) -> None:
        self.left_out = 0
        self._path = path
        self._inside = False
        """The next piece begins inside of such a line."""
        self._offset = 0
        self._inode = 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """New objects, and whether the file is another one than before; none without a file."""
        try:
            with self._path.open("rb") as file:
                anew = self._is_another(file.fileno())
                whole = self._whole_lines(file)
        except FileNotFoundError:
            return [], False
        return [found for each in whole.splitlines() if (found := _object(each))], anew

    def rewind(self) -> None:
        """Begin again with the first line."""
        self._offset = self.left_out = 0
        self._inside = False

    def _whole_lines(self, file: BinaryIO) -> bytes:
        while True:
            file.seek(self._offset)
            data = file.read(PIECE_BYTES)
            if self._inside and data:
                rest = data.find(b"\n") + 1
                self._inside = not rest
                self._offset += rest or len(data)
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            if whole or len(data) < PIECE_BYTES:
                return whole
            self._inside = True
            self.left_out += 1

    def _is_another(self, descriptor: int) -> bool:
        facts = os.fstat(descriptor)
        before, self._inode = self._inode, facts.st_ino
        if before and (before != facts.st_ino or facts.st_size < self._offset):
            self.rewind()
            return True
        return False


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # a disk that was full in the middle of a line
    return found if isinstance(found, dict) else None


def _routes(topology: Topology) -> Literal["", "replayed", "not replayed", "dense"]:
    if topology.algorithm.replay_routes:
        return "replayed"
    if topology.model is None:
        return ""
    try:
        is_mixture = has_experts(topology.model.folder)
    except (OSError, ValueError):
        return ""  # the folder of a run may be looked at where its model is not
    return "not replayed" if is_mixture else "dense"


class Records(Struct):
    """Everything that the folder of one run tells."""

    folder: Path
    metrics: Tail
    events: Tail
    _open_step: bytes = b""
    _again: bool = False

    @classmethod
    def of(cls, folder: Path) -> Records:
        """Of this run folder."""
        return cls(folder, Tail(folder / METRICS), Tail(folder / EVENTS))

    def about(self) -> About:
        """What the topology of the run says.

        Raises:
            ConfigError: there is no topology.toml, or it cannot be read.
        """
        topology = read_resolved(self.folder / "topology.toml")
        buffer = topology.actors.buffer or BufferConfig()
        publisher = topology.actors.publisher or PublisherConfig()
        return About(
            name=topology.run.name,
            folder=str(self.folder),
            steps=topology.run.steps,
            engines=len(topology.names("engine")),
            success=f"rollout/{topology.data.success_metric if topology.data else 'solved'}",
            supervised=topology.algorithm.estimator == "sft",
            sync=topology.run.mode is Mode.SYNC,
            staleness_max=buffer.max_weight_staleness,
            stale_is_corrected=buffer.staleness_policy == "correct"
            or (buffer.staleness_policy == "pace" and buffer.late == "correct"),
            difference_max=publisher.canary_difference_max if publisher.canary else 0.0,
            routes=_routes(topology),
            guard_max=topology.guard.logprob_difference_max,
        )

    def read(self) -> Recorded | None:
        """What was written since the last time; the step that is still open at the end."""
        if again := self._again:
            self._again = False
            self.metrics.rewind()
            self.events.rewind()
        steps, steps_anew = self.metrics.read()
        events, events_anew = self.events.read()
        if steps_anew != events_anew:
            # Both are told anew or none: what is void of the one would be missed of the other.
            self._again = True
            return self.read()
        if anew := again or steps_anew:
            self._open_step = b""
        steps += self._still_open()
        events += self._left_out()
        if not steps and not events and not anew:
            return None
        return Recorded(steps=tuple(steps), events=tuple(events), anew=anew)

    def _left_out(self) -> Iterator[dict[str, Any]]:
        for tail, name in ((self.metrics, METRICS), (self.events, EVENTS)):
            while tail.left_out:
                tail.left_out -= 1
                size = f"{PIECE_BYTES >> 20} MiB"
                text = f"a line of {name} is longer than {size} and is not shown"
                said = {"time": time.time(), "source": "monitor", "kind": "left_out", "text": text}
                yield said

    def rewind(self) -> None:
        """Tell everything once more at the next reading: the run was resumed."""
        self._again = True

    def _still_open(self) -> Iterator[dict[str, Any]]:
        try:
            text = (self.folder / OPEN_STEP).read_bytes()
        except FileNotFoundError:
            return
        if text != self._open_step:
            self._open_step = text
            if found := _object(text):
                yield found

    def ended(self) -> Ended | None:
        """How the run ended; None while it goes on, or when nobody has written it down yet."""
        path = self.folder / SUMMARY
        try:
            found = _object(path.read_bytes())
            if found is None:
                text = f"{path} cannot be read, so how it ended is not known"
                cause = {"actor": "supervisor", "text": text}
                return Ended(summary={"cause": cause, "ended_at": path.stat().st_mtime})
        except FileNotFoundError:
            return None
        facts = self.run_file()
        # A resumed run has the summary of the life before it until it ends itself.
        is_of_this_life = facts is None or found.get("run_id") == facts.get("run_id")
        return Ended(summary=found) if is_of_this_life else None

    def run_file(self) -> dict[str, Any] | None:
        """What the supervisor said of its run when it began."""
        try:
            return _object((self.folder / RUN_FILE).read_bytes())
        except FileNotFoundError:
            return None

    def log(self, actor: str) -> Logged:
        """The end of an actor's log."""
        try:
            lines = last_lines(log_path(self.folder, actor), lines_max=LOG_LINES)
        except OSError as error:
            lines = (f"the log cannot be read: {error.strerror}",)
        return Logged(actor=actor, lines=lines)
