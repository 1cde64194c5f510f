"""A process that encodes its share of a version into one shard. Never imports torch.

Started as `python -P -m milepost.actors.weights.encode_worker`. Frames on standard input and
output: four bytes of length, little-endian, then msgpack. First comes one `Setup`; then each
`Share` is answered with one `ShareDone`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct

from milepost.actors.lifeline import tie_to_parent
from milepost.actors.weights.arena import Arena
from milepost.actors.weights.manifest import Layout
from milepost.actors.weights.payloads import Encoding, PayloadWriter
from milepost.actors.weights.shards import ShardWriter
from milepost.messages.engine import TensorSpec

LENGTH_BYTES: Final = 4


class Setup(Struct, frozen=True, kw_only=True):
    """What stays the same for all versions."""

    specs: tuple[TensorSpec, ...]
    descriptors: tuple[int, int]
    """Of the two arenas; which of them is the older one, each share says."""
    encoding: Encoding
    checksum: str


class Share(Struct, frozen=True, kw_only=True):
    """Encode these tensors into this file."""

    path: str
    names: tuple[str, ...]
    old: int
    """Index of the arena with the old bytes; -1 writes every tensor in full."""
    new: int


class Written(Struct, frozen=True, kw_only=True):
    """One tensor that changed."""

    name: str
    encoding: str
    num_changed: int


class ShareDone(Struct, frozen=True, kw_only=True):
    """The shard is flushed and has its name; or it could not be written, and why."""

    written: tuple[Written, ...] = ()
    file_bytes: int = 0
    """0: nothing changed, there is no file."""
    cpu_s: float = 0.0
    error: str = ""


def read_frame(source: IO[bytes]) -> bytes:
    """The next frame; empty at the end."""
    head = source.read(LENGTH_BYTES)
    return source.read(int.from_bytes(head, "little")) if len(head) == LENGTH_BYTES else b""


def write_frame(sink: IO[bytes], message: Struct) -> None:
    """One message."""
    body = msgspec.msgpack.encode(message)
    sink.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    sink.flush()


def encode_share(
    share: Share, arenas: tuple[Arena, Arena], writer: PayloadWriter, checksum: str
) -> ShareDone:
    """Write one shard.

    Raises:
        OSError: the disk is full, or the folder is gone.
    """
    started_s = time.process_time()
    shard = ShardWriter(Path(share.path), share.names, checksum)
    written: list[Written] = []
    try:
        for name in share.names:
            new = arenas[share.new].view(name)
            old = new[:0] if share.old < 0 else arenas[share.old].view(name)
            itemsize = arenas[0].layout.itemsize(name)
            payload = shard.add(writer, name, old, new, itemsize)
            if payload.encoding:
                changed = payload.num_changed
                written.append(Written(name=name, encoding=payload.encoding, num_changed=changed))
        file_bytes = shard.finish()
    except OSError:
        shard.abandon()
        raise
    cpu_s = time.process_time() - started_s
    return ShareDone(written=tuple(written), file_bytes=file_bytes, cpu_s=cpu_s)


def main() -> int:
    """Serve until standard input ends."""
    tie_to_parent()
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    setup = msgspec.msgpack.decode(read_frame(source), type=Setup)
    layout = Layout(setup.specs)
    first, second = (Arena(layout, descriptor) for descriptor in setup.descriptors)
    writer = PayloadWriter(setup.encoding, setup.checksum)
    while frame := read_frame(source):
        share = msgspec.msgpack.decode(frame, type=Share)
        try:
            done = encode_share(share, (first, second), writer, setup.checksum)
        except OSError as error:
            done = ShareDone(error=f"{share.path} cannot be written: {error}")
        write_frame(sink, done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
