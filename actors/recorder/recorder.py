"""The recorder of one actor: a line for each call of its core, pins, and the story of a failure."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from milepost.actors.effects import (
    Answered,
    Ask,
    Effect,
    Event,
    Fail,
    Received,
    Reply,
    Taken,
    Tell,
    Unanswered,
    Wake,
    Woken,
    WorkDone,
)
from milepost.actors.recorder.content import NotRecordable, content_of, digest_of_content
from milepost.actors.recorder.describing import facts_of, values_of
from milepost.actors.recorder.lines import START, Decision, Facts, Line, encode_line
from milepost.actors.recorder.payloads import Payloads
from milepost.actors.recorder.pins import write_pin
from milepost.actors.recorder.ring import Ring
from milepost.configs.spec import ActorSpec
from milepost.configs.system import RecorderConfig
from milepost.messages.schema import fingerprint
from milepost.messages.shared import Message

FOLDER: Final = "recorder"
SentMessage: TypeAlias = tuple[int, int]
"""Id and digest of a message on the bus."""
NOTHING_SENT: Final[SentMessage] = (0, 0)
_NO_FACTS: Final[Facts] = {}
WAITING_MAX: Final = 64
"""Calls that wait to be written down together."""
MEASURED_EVERY: Final = 16
"""Of so many times that lines are written, the processor time of one stands for all: asking for it
takes as long as half a line."""
EFFECTS_MAX: Final = 256
"""In one line; a core that orders more is not recorded whole, and says so."""


class Call(Struct, frozen=True, gc=False):
    """One call of the core, before it is a line. Everything in it stays as it is."""

    event: Event | None
    now_s: float
    at_s: float
    effects: Sequence[Effect]
    sent: Sequence[SentMessage]
    message_id: int
    cause: int
    digest: int
    error: str


class Recorder:
    """Writes down what a core is told and what it decides.

    A line costs several times as much when the processor did something else just before, which
    between two messages it always did. So calls wait until what has come is dealt with (`note`),
    and become lines together (`flush`). A full recording is written call by call, because contents
    may change later.

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
        self._cpu_s = 0.0
        self._num_flushes = 0
        self._waiting: list[Call] = []

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
        self.flush()
        if self._payloads is not None:
            self._payloads.close()
        self._ring.close()

    def statistics(self) -> dict[str, object]:
        """Lines so far, processor time (sampled), pins, and why contents are not kept any more."""
        ended = self._payloads.ended if self._payloads is not None else ""
        return {
            "lines": self._number,
            "cpu_s": round(self._cpu_s, 3),
            "pins": self._num_pins,
            "payloads_ended": ended,
        }

    # ---- a line ----------------------------------------------------------------------------

    def note(self, call: Call) -> bool:
        """Have a call written down by the next `flush`; whether that should come at once."""
        self._waiting.append(call)
        return self._payloads is not None or len(self._waiting) >= WAITING_MAX

    def flush(self) -> Sequence[Call]:
        """Write down what waits; these calls."""
        waiting = self._waiting
        if not waiting:
            return ()
        self._waiting = []
        self._num_flushes += 1
        is_measured = self._num_flushes % MEASURED_EVERY == 0
        started_s = time.thread_time() if is_measured else 0.0
        for call in waiting:
            self._write(call)
        if is_measured:
            self._cpu_s += MEASURED_EVERY * (time.thread_time() - started_s)
        return waiting

    def record(  # noqa: PLR0913 - a line has as many parts
        self,
        event: Event | None,
        now_s: float,
        effects: Sequence[Effect],
        sent: Sequence[SentMessage],
        *,
        message_id: int = 0,
        cause: int = 0,
        digest: int = 0,
        error: str = "",
        at_s: float | None = None,
    ) -> None:
        """One call of the core.

        Args:
            event: what it was told; None: to start.
            now_s: the time it was told.
            effects: what it answered.
            sent: what each effect sent, as far as they came.
            message_id: of the event, if it came with a message.
            cause: id of the message that led to that one.
            digest: of the message, as it travelled.
            error: what it raised.
            at_s: time of the day when it was told, before anything that it led to; None: now.
        """
        now = time.time() if at_s is None else at_s
        self._write(Call(event, now_s, now, effects, sent, message_id, cause, digest, error))

    def _write(self, call: Call) -> None:
        event, digest, error = call.event, call.digest, call.error
        kind, source, key, content, failed = _parts(event)
        facts: Facts = _NO_FACTS
        name = ""
        if content is not None:
            name = type(content).__name__
            if isinstance(content, Message):
                facts = values_of(content) if self._payloads is None else facts_of(content)
            if self._payloads is not None:
                digest, problem = _kept(self._payloads, content)
                error = error or problem
        effects = call.effects
        line = Line(
            self._number,
            call.at_s,
            call.now_s,
            kind,
            source,
            name,
            key,
            call.message_id,
            call.cause,
            type(event) is Received and event.request is not None,
            facts,
            digest,
            error or failed,
            decisions_of(effects, call.sent, whole=self._payloads is not None) if effects else [],
        )
        self._ring.append(self._encoded(line))
        self._number += 1

    def _encoded(self, line: Line) -> bytes:
        try:
            data = encode_line(line)
            if len(data) <= self._ring.record_bytes_max:
                return data
            text = f"the line had {len(data)} bytes"
        except (OverflowError, UnicodeEncodeError) as error:
            text = f"the line cannot be written: {error}"
        return encode_line(msgspec.structs.replace(line, facts={}, decisions=[], error=text))

    # ---- pins ------------------------------------------------------------------------------

    def image(self) -> bytes:
        """A copy of the ring as it is now, with all that was noted."""
        self.flush()
        return self._ring.image()

    def pin(self, reason: str, image: bytes) -> str:
        """Write a copy of the ring to a file that nothing overwrites; its path.

        May be called on any thread, and on several at once.

        Raises:
            PinsFull, OSError: see `write_pin`.
        """
        with self._pinning:
            path = write_pin(self._ring.path, image, reason, self._pins_max)
            self._num_pins += 1
        return str(path)


def decisions_of(
    effects: Sequence[Effect], sent: Sequence[SentMessage], *, whole: bool
) -> list[Decision]:
    """Effects as they stand in a line.

    Args:
        effects: what the core ordered.
        sent: what each of them sent, as far as they came.
        whole: digest all of them, as a full recording does.
    """
    missing = len(effects) - len(sent)
    if missing:
        sent = [*sent, *[NOTHING_SENT] * missing]
    if len(effects) == 1:
        return [decision_of(effects[0], sent[0], whole=whole)]
    told = [
        decision_of(effect, each, whole=whole)
        for effect, each in zip(effects[:EFFECTS_MAX], sent, strict=False)
    ]
    if len(effects) > EFFECTS_MAX:
        more = len(effects) - EFFECTS_MAX
        told.append(Decision("more", f"{more} further effects are not in this line"))
    return told


def decision_of(effect: Effect, sent: SentMessage, *, whole: bool) -> Decision:
    """An effect as it stands in a line.

    Args:
        effect: what the core ordered.
        sent: what it sent.
        whole: digest its content, as a full recording does, and not its bytes on the way.
    """
    # Patterns without sub-patterns are plain type checks, the frequent ones first: this runs for
    # every effect.
    match effect:
        case Tell():
            kind, to, key, at = "tell", effect.to, effect.key, effect.deadline_s
            confirm, message = effect.confirm, effect.message
        case Ask():
            kind, to, key, at = "ask", effect.to, effect.key, effect.deadline_s
            confirm, message = False, effect.message
        case Reply():
            kind, to, key, at = "reply", effect.request.source, "", None
            confirm, message = False, effect.message
        case Wake():
            return Decision("wake", "", "", effect.key, 0, _NO_FACTS, 0, effect.at_s)
        case Fail():
            return Decision("fail", effect.reason)
        case _:
            digest = digest_of_content(effect) if whole else 0
            return Decision("work", "", type(effect).__name__, effect.key, 0, _NO_FACTS, digest)
    message_id, digest = sent
    facts = facts_of(message) if whole else values_of(message)
    if whole:
        digest = digest_of_content(message)
    name = type(message).__name__
    return Decision(kind, to, name, key, message_id, facts, digest, at, confirm)


def _kept(payloads: Payloads, content: object) -> tuple[int, str]:
    """The address of a content, and why it is not kept."""
    try:
        return payloads.keep(content_of(content)), ""
    except NotRecordable as error:
        return 0, f"not kept: {error}"


def _parts(event: Event | None) -> tuple[str, str, str, object, str]:
    """Kind, source, key, content, and what failed."""
    match event:
        case Received():
            return "received", event.source, "", event.message, ""
        case Answered():
            return "answered", event.source, event.key, event.message, ""
        case WorkDone():
            return "done", "", event.key, event.result, event.error
        case Woken():
            return "woken", "", event.key, None, ""
        case Taken():
            return "taken", "", event.key, None, ""
        case Unanswered():
            return "unanswered", event.to, event.key, None, event.reason
        case None:
            return START, "", "", None, ""


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
