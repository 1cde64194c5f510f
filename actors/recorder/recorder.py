"""The recorder of one actor: a line for each call of its core, pins, and the story of a failure."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple, replace

from milepost.actors.effects import Answered, Effect, Event, Received, WorkDone
from milepost.actors.recorder.calls import Call, RawLine, lasting, raw_line, whole_decisions
from milepost.actors.recorder.content import NotRecordable, content_of
from milepost.actors.recorder.describing import facts_of
from milepost.actors.recorder.lines import Decision, Facts, Line, encode_lines
from milepost.actors.recorder.payloads import Payloads
from milepost.actors.recorder.pins import write_pin
from milepost.actors.recorder.ring import Ring
from milepost.actors.recorder.story import anomaly_in
from milepost.configs.spec import ActorSpec
from milepost.configs.system import RecorderConfig
from milepost.messages.schema import fingerprint
from milepost.messages.shared import Message

FOLDER: Final = "recorder"
STUCK_S: Final = 1.0
"""An event loop that has let a call wait for so long is stuck."""


class Recorder:
    """Writes down what a core is told and what it decides.

    A line costs several times as much when the processor did something else just before, which
    between two messages it always did. So calls wait, and become lines together (`write`), one
    record of the ring. A full recording is written call by call, because contents may change later.

    Args:
        spec: whose.
        ring: where lines go.
        payloads: where contents go; None: only digests are kept.
        pins_max: files that `pin` may write.
    """

    def __init__(
        self, spec: ActorSpec, ring: Ring, payloads: Payloads | None, pins_max: int
    ) -> None:
        self.actor = spec.actor
        self.run_id = spec.run_id
        self.folder = Path(spec.run_folder) / FOLDER
        self._ring = ring
        self._payloads = payloads
        self._pins_max = pins_max
        self._number = 0
        self._num_pins = 0
        self._pinning = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._cpu_s = 0.0
        self.waiting: list[Call] = []
        """Calls that `write` makes lines of; not of a full recording."""
        self._news: list[Message] = []

    @classmethod
    def open(cls, spec: ActorSpec) -> Recorder | None:
        """The recorder that the topology asks for; what an earlier life left is put aside.

        Raises:
            OSError: there is no room for it; `system.recorder` can be made smaller.
        """
        config: RecorderConfig = spec.topology.system.recorder
        if not config.enabled:
            return None
        folder = Path(spec.run_folder) / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = f"{spec.actor}-{spec.incarnation}"
        for kind in ("ring", "payloads"):
            path = folder / f"{stem}.{kind}"
            if path.exists():
                path.replace(folder / f"{stem}.earlier.{kind}")
        try:
            ring = Ring(folder / f"{stem}.ring", config.ring_bytes, _about(spec))
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: no room for system.recorder.ring_bytes = {config.ring_bytes}",
                str(folder / f"{stem}.ring"),
            ) from error
        payloads = None
        if config.payloads:
            payloads = Payloads(folder / f"{stem}.payloads", config.payload_bytes_max)
        return cls(spec, ring, payloads, config.pins_max)

    def close(self) -> None:
        """Write what waits, and what is left of the contents."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        self._write_waiting()
        if self._payloads is not None:
            self._payloads.close()
        self._ring.close()

    @property
    def keeps_contents(self) -> bool:
        """Whether this is a full recording."""
        return self._payloads is not None

    def statistics(self) -> dict[str, object]:
        """Lines so far, their processor time, pins, and why contents are not kept any more."""
        ended = self._payloads.ended if self._payloads is not None else ""
        return {
            "lines": self._number + len(self.waiting),
            "cpu_s": round(self._cpu_s, 3),
            "pins": self._num_pins,
            "payloads_ended": ended,
        }

    # ---- lines -----------------------------------------------------------------------------

    def write(self, spent_s: float = 0.0) -> list[str]:
        """Write down what waits.

        Args:
            spent_s: processor time that letting it wait took.

        Returns:
            Why anything since the last time is worth a pin.
        """
        self._cpu_s += spent_s
        self._write_waiting()
        news, self._news = self._news, []
        return list(filter(None, map(anomaly_in, news)))

    def _write_waiting(self) -> None:
        if not self.waiting:
            return
        started_s = time.thread_time()
        with self._writing:
            # Whoever adds to it meanwhile adds behind these.
            calls = self.waiting[:]
            if not calls:
                return  # the other thread was here first
            del self.waiting[: len(calls)]
            news = self._news
            self._write([raw_line(at, call, news) for at, call in enumerate(calls, self._number)])
            self._number += len(calls)
            self._cpu_s += time.thread_time() - started_s

    def watch(self) -> None:
        """Have a thread of its own write down what waits when the event loop is stuck."""
        self._watcher = threading.Thread(target=self._watch, name="recorder", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._closing.wait(STUCK_S):
            first = next(iter(self.waiting), None)
            if first is not None and time.time() - first[2] >= STUCK_S:
                self._write_waiting()

    def write_whole(self, call: Call, effects: Sequence[Effect]) -> list[str]:
        """Write down a call and its contents; why it is worth a pin.

        Args:
            call: with the event as it was told.
            effects: as they were ordered.
        """
        assert self._payloads is not None, "contents are not kept"
        started_s = time.thread_time()
        told, now_s, at_s, carried_out, failure = call
        as_told = lasting(told), now_s, at_s, carried_out, failure
        line = _bare(raw_line(self._number, as_told, self._news))
        decisions = whole_decisions(effects, carried_out)
        self._write([_whole(line, told.event, decisions, self._payloads)])
        self._number += 1
        self._cpu_s += time.thread_time() - started_s
        return self.write()

    def _write(self, lines: Sequence[RawLine | Line]) -> None:
        """One record of them all, if it can be; what cannot be written says so."""
        try:
            data = encode_lines(lines)
            if len(data) <= self._ring.record_bytes_max:
                self._ring.append(data)
                return
            problem = f"the line had {len(data)} bytes"
        except (OverflowError, UnicodeEncodeError) as error:
            problem = f"the line cannot be written: {error}"
        if len(lines) > 1:
            half = len(lines) // 2
            self._write(lines[:half])
            self._write(lines[half:])
            return
        bare = replace(_bare(lines[0]), facts={}, decisions=[], error=problem)
        self._ring.append(encode_lines([bare]))

    # ---- pins ------------------------------------------------------------------------------

    def image(self) -> bytes:
        """A copy of the ring as it is now, with all that was noted."""
        self._write_waiting()
        return self._ring.image()

    def pin(self, reason: str, image: bytes) -> str:
        """Write a copy of the ring to a file that nothing overwrites; its path.

        May be called on any thread, and on several at once.

        Raises:
            PinsFull, OSError: see `write_pin`.
        """
        with self._pinning:
            path = write_pin(self._ring.path, self.run_id, image, reason, self._pins_max)
            self._num_pins += 1
        return str(path)


def _bare(line: RawLine | Line) -> Line:
    """The line without its decisions."""
    fields: tuple[Any, ...] = line[:-1] if isinstance(line, tuple) else astuple(line)[:-1]
    return Line(*fields)


def _whole(line: Line, event: Event | None, decisions: list[Decision], payloads: Payloads) -> Line:
    """The line of a recording whose contents are kept, from its bare line."""
    facts: Facts = {}
    digest, problem = 0, ""
    match event:
        case Received(message=content) | Answered(message=content) | WorkDone(result=content):
            if content is not None:
                digest, problem = _kept(payloads, content)
            if isinstance(content, Message):
                facts = facts_of(content)
        case _:
            pass
    return replace(
        line, facts=facts, digest=digest, error=line.error or problem, decisions=decisions
    )


def _kept(payloads: Payloads, content: object) -> tuple[int, str]:
    """The address of a content, and why it is not kept."""
    try:
        return payloads.keep(content_of(content)), ""
    except NotRecordable as error:
        return 0, f"not kept: {error}"


def _about(spec: ActorSpec) -> dict[str, Any]:
    return {
        "actor": spec.actor,
        "kind": spec.kind,
        "index": spec.index,
        "incarnation": spec.incarnation,
        "run_id": spec.run_id,
        "resume_step": spec.resume_step,
        "topology_hash": spec.topology_hash,
        "schema": fingerprint(),
        "payloads": spec.topology.system.recorder.payloads,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_s": time.time(),
    }
