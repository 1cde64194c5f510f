"""The recorder of one actor: a line for each call of its core, pins, and the story of a failure."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

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
from milepost.actors.recorder.describing import digest_of, facts_of
from milepost.actors.recorder.lines import START, Decision, Facts, Line, encode_line
from milepost.actors.recorder.payloads import Payloads
from milepost.actors.recorder.pins import write_pin
from milepost.actors.recorder.ring import Ring
from milepost.configs.spec import ActorSpec
from milepost.configs.system import RecorderConfig
from milepost.messages.schema import fingerprint
from milepost.messages.shared import Message

FOLDER: Final = "recorder"
EFFECTS_MAX: Final = 256
"""In one line; a core that orders more is not recorded whole, and says so."""


class Recorder:
    """Writes down what a core is told and what it decides.

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
        """Write what is left of the contents; the ring needs nothing."""
        if self._payloads is not None:
            self._payloads.close()
        self._ring.close()

    def statistics(self) -> dict[str, object]:
        """Lines so far, pins, and why contents are not kept any more."""
        ended = self._payloads.ended if self._payloads is not None else ""
        return {"lines": self._number, "pins": self._num_pins, "payloads_ended": ended}

    # ---- a line ----------------------------------------------------------------------------

    def record(
        self,
        event: Event | None,
        now_s: float,
        effects: Sequence[Effect],
        sent: Sequence[int],
        *,
        message_id: int = 0,
        cause: int = 0,
        error: str = "",
    ) -> None:
        """One call of the core.

        Args:
            event: what it was told; None: to start.
            now_s: the time it was told.
            effects: what it answered.
            sent: id of the message that each effect sent, 0 for others; as far as they came.
            message_id: of the event, if it came with a message.
            cause: id of the message that led to that one.
            error: what it raised.
        """
        kind, source, key, content, failed = _parts(event)
        facts: Facts = {}
        digest = 0
        if content is not None:
            facts, digest, problem = self._content(content)
            error = error or problem
        line = Line(
            self._number,
            time.time(),
            now_s,
            kind,
            source,
            "" if content is None else type(content).__name__,
            key,
            message_id,
            cause,
            isinstance(event, Received) and event.request is not None,
            facts,
            digest,
            error or failed,
            decisions_of(effects, sent, whole=self._payloads is not None),
        )
        self._ring.append(self._encoded(line))
        self._number += 1

    def _encoded(self, line: Line) -> bytes:
        try:
            data = encode_line(line)
            if len(data) <= self._ring.record_bytes_max:
                return data
            text = f"the line had {len(data)} bytes"
        except OverflowError as error:
            text = f"the line cannot be written: {error}"
        return encode_line(msgspec.structs.replace(line, facts={}, decisions=[], error=text))

    def _content(self, content: object) -> tuple[Facts, int, str]:
        """Facts, digest, and why it cannot be kept."""
        facts = facts_of(content) if isinstance(content, Message) else {}
        if self._payloads is None:
            return facts, _fast_digest(content), ""
        try:
            return facts, self._payloads.keep(content_of(content)), ""
        except NotRecordable as error:
            return facts, 0, f"not kept: {error}"

    # ---- pins ------------------------------------------------------------------------------

    def image(self) -> bytes:
        """A copy of the ring as it is now."""
        return self._ring.image()

    def pin(self, reason: str, image: bytes) -> str:
        """Write a copy of the ring to a file that nothing overwrites; its path.

        May be called on any thread, but on one at a time.

        Raises:
            PinsFull, OSError: see `write_pin`.
        """
        path = write_pin(self._ring.path, image, reason, self._pins_max)
        self._num_pins += 1
        return str(path)


def decisions_of(effects: Sequence[Effect], sent: Sequence[int], *, whole: bool) -> list[Decision]:
    """Effects as they stand in a line.

    Args:
        effects: what the core ordered.
        sent: id of the message that each of them sent, as far as they came.
        whole: digest all of them, as a full recording does.
    """
    ids = [*sent, *[0] * (len(effects) - len(sent))]
    told = [
        decision_of(effect, message_id, whole=whole)
        for effect, message_id in zip(effects[:EFFECTS_MAX], ids, strict=False)
    ]
    if len(effects) > EFFECTS_MAX:
        more = len(effects) - EFFECTS_MAX
        told.append(Decision("more", f"{more} further effects are not in this line"))
    return told


def decision_of(effect: Effect, message_id: int, *, whole: bool) -> Decision:
    """An effect as it stands in a line.

    Args:
        effect: what the core ordered.
        message_id: of what it sent; 0: nothing.
        whole: digest all of it, as a full recording does.
    """
    match effect:
        case Wake(key, at_s):
            return Decision("wake", "", "", key, 0, {}, 0, at_s)
        case Tell(to, message, key, deadline_s, confirm):
            kind, at = "tell", deadline_s
        case Ask(to, message, key, deadline_s):
            kind, at, confirm = "ask", deadline_s, False
        case Reply(request, message):
            kind, to, key, at, confirm = "reply", request.source, "", None, False
        case Fail(reason):
            return Decision("fail", reason)
        case work:
            digest = digest_of_content(work) if whole else 0
            return Decision("work", "", type(work).__name__, work.key, 0, {}, digest)
    digest = digest_of_content(message) if whole else _fast_digest(message)
    facts, name = facts_of(message), type(message).__name__
    return Decision(kind, to, name, key, message_id, facts, digest, at, confirm)


def _fast_digest(content: object) -> int:
    if not isinstance(content, Message):
        return 0
    try:
        return digest_of(content)
    except (TypeError, OverflowError):
        return 0  # the bus says what is wrong with it


def _parts(event: Event | None) -> tuple[str, str, str, object, str]:
    """Kind, source, key, content, and what failed."""
    match event:
        case None:
            return START, "", "", None, ""
        case Received(source, message):
            return "received", source, "", message, ""
        case Answered(key, source, message):
            return "answered", source, key, message, ""
        case Unanswered(key, to, reason):
            return "unanswered", to, key, None, reason
        case Taken(key):
            return "taken", "", key, None, ""
        case Woken(key):
            return "woken", "", key, None, ""
        case WorkDone(key, result, error):
            return "done", "", key, result, error


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
