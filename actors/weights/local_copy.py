"""The receiving side of disk-delta: one host's own checkpoint, patched from version to version.

The copy is an ordinary Hugging Face folder. A lock lets one process at a time touch it; a file
beside it says which bytes it has, and is removed while they change. So a process that dies at any
instant leaves a copy that says what it is, or one that says nothing and is made anew.
"""

from __future__ import annotations

import fcntl
import mmap
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from milepost.actors.weights.checksums import new_checksum
from milepost.actors.weights.chunks import PayloadError
from milepost.actors.weights.files import flush, flush_folder, remove, write_whole
from milepost.actors.weights.full import STATE
from milepost.actors.weights.manifest import (
    INDEX,
    Layout,
    ManifestError,
    Place,
    digest_of,
    read_checkpoint,
)
from milepost.actors.weights.payloads import PayloadReader
from milepost.actors.weights.shards import ShardReader
from milepost.actors.weights.versions import LineageError, State, VersionIndex, Versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOCK: Final = "lock"
WEIGHTS: Final = "checkpoint"


class Brought(NamedTuple):
    """What a copy went through.

    Attributes:
        num_versions: differences that were applied.
        made_anew: why it was made anew first; empty when it was not.
    """

    num_versions: int
    made_anew: str


def patch(
    index: VersionIndex,
    folder: Path,
    view: Callable[[str], NDArray[np.uint8]],
    layout: Layout,
    *,
    threads: int = 1,
) -> None:
    """Apply one version in place, and prove each tensor that changed.

    Args:
        index: of the version.
        folder: of its shards.
        view: tensor -> uint8 [bytes], writable, with the base's bytes.
        layout: of the tensors.
        threads: that work on a tensor each.

    Raises:
        PayloadError: a payload does not fit, or the bytes afterwards are not those of the version.
        ManifestError: a shard is missing or damaged.
    """
    names = sorted(index.weight_map)
    for name in names:
        if name not in layout.specs:
            raise PayloadError(f"version {index.version} has a tensor {name}, the copy not")
    # The largest first: none of them is begun when the others are through.
    left = deque(sorted(names, key=layout.nbytes, reverse=True))
    with ExitStack() as stack:
        files = sorted(set(index.weight_map.values()))
        shards = {file: stack.enter_context(ShardReader(folder / file)) for file in files}
        workers = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="patch"))

        def work() -> None:
            reader = PayloadReader()
            while left:
                try:
                    name = left.popleft()
                except IndexError:  # another thread took it between the look and the grip
                    return
                try:
                    _patch_tensor(reader, index, shards[index.weight_map[name]], name, view, layout)
                except (PayloadError, ManifestError, OSError):
                    left.clear()
                    raise

        for done in [workers.submit(work) for _ in range(threads)]:
            done.result()


def _patch_tensor(
    reader: PayloadReader,
    index: VersionIndex,
    shard: ShardReader,
    name: str,
    view: Callable[[str], NDArray[np.uint8]],
    layout: Layout,
) -> None:
    target = view(name)
    reader.apply(target, shard.payload(name), index.encoding(name), layout.itemsize(name))
    checksum = new_checksum(index.metadata.checksum_format)
    checksum.update(target.data)
    if (found := checksum.hexdigest()) != shard.checksums[name]:
        raise PayloadError(
            f"{name} has {index.metadata.checksum_format} {found} after version "
            f"{index.version}, the version says {shard.checksums[name]}"
        )


class LocalCopy:
    """One host's copy.

    Args:
        folder: of the copy; on a disk of this host.
        versions: folder of the versions.
        baseline: the starting checkpoint.
        threads: that patch it.
    """

    def __init__(
        self, folder: Path, versions: Versions, baseline: Path, *, threads: int = 1
    ) -> None:
        self._folder, self._versions, self._baseline = folder, versions, baseline
        self._threads = threads

    @property
    def checkpoint(self) -> Path:
        """The Hugging Face folder; look into it only inside `at_version`."""
        return self._folder / WEIGHTS

    @contextmanager
    def at_version(self, version: int) -> Iterator[tuple[Brought, dict[str, NDArray[np.uint8]]]]:
        """Bring the copy to a version, and keep it there inside the `with`.

        Yields:
            What was done, and every tensor as uint8 [bytes].

        Raises:
            LineageError: the version is not there, or nothing leads to it.
            PayloadError, ManifestError: it is damaged.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lock = stack.enter_context((self._folder / LOCK).open("w"))
            # Patching takes as long as it takes; the epoch has a deadline of its own.
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._versions.read(version)
            brought = self._bring(version)
            views = stack.enter_context(_mapped(read_checkpoint(self.checkpoint), writable=False))
            yield brought, views

    def state(self) -> State | None:
        """Which bytes the copy has; None when it is in the middle of something, or missing."""
        path = self._folder / STATE
        return msgspec.json.decode(path.read_bytes(), type=State) if path.is_file() else None

    def _bring(self, version: int) -> Brought:
        made_anew = ""
        state = self.state()
        if state is None:
            made_anew = "there was no whole copy"
        else:
            try:
                return self._follow(state, version, "")
            except (LineageError, PayloadError, ManifestError) as error:
                made_anew = str(error)
        return self._follow(self._make(version), version, made_anew)

    def _follow(self, state: State, version: int, made_anew: str) -> Brought:
        links = self._versions.chain(state, version)
        if links:
            places = read_checkpoint(self.checkpoint)
            layout = Layout(place.spec for place in places.values())
            remove(self._folder / STATE)
            with _mapped(places, writable=True) as views:
                for index in links:
                    folder = self._versions.folder(index.version)
                    patch(index, folder, views.__getitem__, layout, threads=self._threads)
            write_whole(self._folder / STATE, msgspec.json.encode(links[-1].state))
        return Brought(len(links), made_anew)

    def _make(self, version: int) -> State:
        """Copy the newest full version that can lead to `version`, or the baseline."""
        remove(self._folder / STATE)
        full = [one for one in self._versions.full() if one <= version]
        source = self._versions.full_folder(full[-1]) if full else self._baseline
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.checkpoint.mkdir()
        weights = {path.name for path in source.iterdir() if path.suffix == ".safetensors"}
        others = {
            path.name
            for path in self._baseline.iterdir()
            if path.is_file() and path.suffix != ".safetensors" and path.name != INDEX
        }
        if (source / INDEX).is_file():
            weights.add(INDEX)
        for name in sorted(weights):
            _copy(source / name, self.checkpoint / name)
        for name in sorted(others):
            _copy(self._baseline / name, self.checkpoint / name)
        flush_folder(self.checkpoint)
        with _mapped(read_checkpoint(self.checkpoint), writable=False) as views:
            digest = digest_of((name, views[name].data) for name in sorted(views))
        state = State(version=full[-1] if full else -1, digest=digest)
        write_whole(self._folder / STATE, msgspec.json.encode(state))
        return state


@contextmanager
def _mapped(places: dict[str, Place], *, writable: bool) -> Iterator[dict[str, NDArray[np.uint8]]]:
    """Every tensor as uint8 [bytes] over its file; written bytes are on the disk at the end."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    maps: dict[Path, mmap.mmap] = {}
    for path in {place.file for place in places.values()}:
        with path.open("r+b" if writable else "rb") as file:
            maps[path] = mmap.mmap(file.fileno(), 0, access=access)
    yield {
        name: np.frombuffer(maps[place.file], np.uint8, place.nbytes, place.offset)
        if place.nbytes
        else np.empty(0, np.uint8)
        for name, place in places.items()
    }
    if writable:
        for one in maps.values():
            one.flush()


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)
        flush(writing)
