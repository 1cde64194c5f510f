"""A process that runs one synchronous reward function, one episode at a time.

Started as `python -P -m milepost.actors.agent.reward_worker MODULE:FUNCTION`. The function may
loop, crash, use signals, threads or its own standard output: this process is all it can harm.

Frames on standard input and output: four bytes of length, little-endian, then msgpack. First the
worker says `Loaded`; then each `RewardInput` is answered with one `Scored`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import BinaryIO

import msgspec
from msgspec import Struct

from milepost.actors.agent.outcome import tell_error
from milepost.actors.agent.reward import (
    RewardInput,
    RewardResult,
    read_result,
    resolve_reward,
)
from milepost.actors.lifeline import tie_to_parent

LENGTH_BYTES = 4


class Loaded(Struct, frozen=True, kw_only=True):
    """The function is imported; or it is not, and why."""

    error: str = ""


class Scored(Struct, frozen=True, kw_only=True):
    """What the function returned, or why there is nothing."""

    result: RewardResult | None = None
    error: str = ""
    seconds: float = 0.0
    """By this process's own clock: a busy event loop on the other side does not count."""


def main() -> int:
    """Serve until standard input ends."""
    tie_to_parent()
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What the function prints goes to the log of the agent, not between our frames.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        function = resolve_reward(sys.argv[1])
    except (ImportError, ValueError, SyntaxError) as error:
        _write(sink, Loaded(error=tell_error(error)))
        return 1
    _write(sink, Loaded())
    while (frame := _read(source)) is not None:
        started_s = time.perf_counter()
        try:
            result = read_result(function(msgspec.msgpack.decode(frame, type=RewardInput)))
            scored = Scored(result=result)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the top of a user's function
            traceback.print_exc()
            scored = Scored(error=tell_error(error))
        seconds = time.perf_counter() - started_s
        _write(sink, msgspec.structs.replace(scored, seconds=seconds))
    return 0


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return source.read(int.from_bytes(head, "little"))


def _write(sink: BinaryIO, message: Struct) -> None:
    body = msgspec.msgpack.encode(message)
    sink.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    sink.flush()


if __name__ == "__main__":
    sys.exit(main())
