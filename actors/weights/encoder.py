"""Worker processes that turn two arenas, old and new, into the shards of one version."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from milepost.actors.weights.arena import Arena
from milepost.actors.weights.encode_worker import (
    Setup,
    Share,
    ShareDone,
    read_frame,
    write_frame,
)
from milepost.actors.weights.manifest import Layout
from milepost.actors.weights.payloads import Encoding

WORKER_MODULE: Final = "milepost.actors.weights.encode_worker"


class EncodeFailed(RuntimeError):
    """A version could not be written; the text names why. The version before is untouched."""


class Encoded(NamedTuple):
    """The shards of one version, all on the disk, under their names.

    Attributes:
        weight_map: tensor -> file.
        encodings: tensor -> encoding.
        num_changed: bytes that differ from the old version.
        file_bytes: of all shards.
        cpu_s: of all workers.
    """

    weight_map: dict[str, str]
    encodings: dict[str, str]
    num_changed: int
    file_bytes: int
    cpu_s: float


class Encoder:
    """A fixed number of worker processes, each with both arenas mapped.

    Args:
        arenas: two, of one layout.
        workers: processes.
        encoding: as of `PayloadWriter`.
        checksum: name of the checksum.
    """

    def __init__(
        self, arenas: tuple[Arena, Arena], *, workers: int, encoding: Encoding, checksum: str
    ) -> None:
        layout = arenas[0].layout
        self._arenas = arenas
        self._shares = plan_shares(layout, workers)
        descriptors = (arenas[0].descriptor, arenas[1].descriptor)
        self._setup = Setup(
            specs=tuple(layout.specs.values()),
            descriptors=descriptors,
            encoding=encoding,
            checksum=checksum,
        )
        self._workers: list[_Worker] = []
        """Started by the first version, and by the first one after a failure."""
        self._is_closed = False
        self._starting = threading.Lock()
        """Held while workers are started and while it is closed, so that none is overlooked."""
        self._encoding = threading.Lock()
        """Held while a version is encoded: its thread uses the workers' pipes."""
        self._threads = ThreadPoolExecutor(len(self._shares), thread_name_prefix="encode")

    def encode(self, folder: Path, *, old: int, new: int, deadline_s: float) -> Encoded:
        """Write the shards of one version; the index is the caller's.

        Args:
            folder: exists and is empty.
            old: arena of the old bytes; -1 writes every tensor in full.
            new: arena of the new bytes.
            deadline_s: of all of it; workers that take longer are killed.

        Raises:
            EncodeFailed: a worker died, was too slow, or could not write; or this is closed.
        """
        with self._encoding:
            return self._encode(folder, old, new, deadline_s)

    def _encode(self, folder: Path, old: int, new: int, deadline_s: float) -> Encoded:
        with self._starting:
            if self._is_closed:
                raise EncodeFailed("the encoder is closed")
            if not self._workers:
                self._workers = [_Worker(self._setup) for _ in self._shares]
        running = []
        for number, (worker, names) in enumerate(zip(self._workers, self._shares, strict=True)):
            # Renamed once it is known how many have anything to say.
            path = str(folder / f"share-{number:05d}.safetensors")
            share = Share(path=path, names=names, old=old, new=new)
            running.append((path, self._threads.submit(worker.do, share, deadline_s)))
        done = [(Path(path), future.result()) for path, future in running]
        if errors := [each.error for _, each in done if each.error]:
            # Who died would fail every version after this one, too.
            self._end_workers()
            raise EncodeFailed("; ".join(errors))
        return name_shards([(path, each) for path, each in done if each.file_bytes])

    def close(self) -> None:
        """Kill every worker; a version that another thread has encoded at this moment fails."""
        with self._starting:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()
        with self._encoding:
            self._end_workers()
        self._threads.shutdown()

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


class _Worker:
    """One process."""

    def __init__(self, setup: Setup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER_MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=setup.descriptors,
        )
        assert self._process.stdin is not None
        self._is_late = False
        write_frame(self._process.stdin, setup)

    def do(self, share: Share, deadline_s: float) -> ShareDone:
        """Have one share encoded; waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(deadline_s, self._expire)
        timer.start()
        try:
            write_frame(self._process.stdin, share)
            frame = read_frame(self._process.stdout)
        except BrokenPipeError:
            frame = b""
        finally:
            timer.cancel()
        if frame:
            return msgspec.msgpack.decode(frame, type=ShareDone)
        code = self._process.wait()
        how = f"was killed after {deadline_s} s" if self._is_late else f"ended with code {code}"
        return ShareDone(error=f"the process that encodes {share.path} {how}")

    def kill(self) -> None:
        """Whoever waits for it hears that it ended."""
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What it was told and never read is lost with it.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _expire(self) -> None:
        self._is_late = True
        self._process.kill()


def plan_shares(layout: Layout, workers: int) -> list[tuple[str, ...]]:
    """Which worker encodes which tensors: the largest first, each to whoever has least."""
    loads = [0] * min(workers, len(layout.specs))
    shares: list[list[str]] = [[] for _ in loads]
    for name in sorted(layout.specs, key=lambda name: (-layout.nbytes(name), name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += layout.nbytes(name)
    return [tuple(share) for share in shares]


def name_shards(done: list[tuple[Path, ShareDone]]) -> Encoded:
    """Give shards their final names, which say how many there are."""
    weight_map: dict[str, str] = {}
    encodings: dict[str, str] = {}
    num_changed = 0
    for number, (path, share) in enumerate(done):
        name = f"model-{number:05d}-of-{len(done):05d}.safetensors"
        path.replace(path.with_name(name))
        for tensor in share.written:
            weight_map[tensor.name] = name
            encodings[tensor.name] = tensor.encoding
            num_changed += tensor.num_changed
    file_bytes = sum(share.file_bytes for _, share in done)
    cpu_s = sum(share.cpu_s for _, share in done)
    return Encoded(weight_map, encodings, num_changed, file_bytes, cpu_s)
