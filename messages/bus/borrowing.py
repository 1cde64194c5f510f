"""Reads the shared memory that other processes lend (see `lending`)."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from weakref import ref

from milepost.messages.errors import ProtocolError
from milepost.messages.layout import Opener

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps it


def segment_prefix(run_id: str) -> str:
    """How the names of all shared memory of a run begin."""
    return f"milepost-{run_id}-"


def owner_prefix(run_id: str, name: str, incarnation: int) -> str:
    """How the names of all shared memory begin that one incarnation of an actor has made."""
    return f"{segment_prefix(run_id)}{name}.{incarnation}-"


class Mapping(mmap.mmap):
    """A segment of another process, read-only, mapped for one message."""

    name: str
    """In the folder."""


class _Reading:
    """One message's mappings: when the last is gone, and the decoder is done, it is given back.

    Finalizers run on any thread. Taking the next number of a counter cannot be interrupted, so
    exactly one of them draws the last one.
    """

    __slots__ = ("_drawn", "_give_back", "mappings", "total")

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back
        self._drawn = count(1)
        self.mappings: dict[str, ref[Mapping]] = {}
        self.total = -1

    def draw(self) -> None:
        """One mapping is gone, or the decoder is done."""
        if next(self._drawn) == self.total:
            self._give_back()


class Borrower:
    """Maps segments of other processes; tells `given_back` when nothing refers to them any more.

    Args:
        run_id: only names of this run are opened.
        given_back: called once with the token of each message that had any, on any thread.
        folder: where segments lie.
    """

    def __init__(
        self, run_id: str, given_back: Callable[[Any], None], folder: Path = FOLDER
    ) -> None:
        self._prefix = segment_prefix(run_id)
        self._given_back = given_back
        self._folder = folder
        self._mapped: dict[int, ref[Mapping]] = {}

    @contextmanager
    def reading(self, token: object) -> Iterator[Opener]:
        """Open what one message refers to, while it is decoded."""

        def give_back() -> None:
            with contextlib.suppress(RuntimeError):
                self._given_back(token)

        reading = _Reading(give_back)
        held: dict[str, Mapping] = {}

        def open_segment(name: str, offset: int, nbytes: int) -> memoryview:
            mapping = held.get(name)
            if mapping is None:
                mapping = held[name] = self._map(name, reading)
            if offset + nbytes > len(mapping):
                raise ProtocolError(
                    f"bulk ends at byte {offset + nbytes} of shared memory {name}, "
                    f"which has {len(mapping)}"
                )
            return memoryview(mapping)[offset : offset + nbytes]

        try:
            yield open_segment
        finally:
            if held:
                reading.total = len(held) + 1
                held.clear()
                reading.draw()

    def _map(self, name: str, reading: _Reading) -> Mapping:
        if not name.startswith(self._prefix) or "/" in name:
            raise ProtocolError(f"shared memory {name!r:.80} is not of this run ({self._prefix}*)")
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ProtocolError(f"shared memory {name} is gone: {error.strerror}") from error
        try:
            mapping = Mapping(descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"shared memory {name} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        mapping.name = name
        key = id(mapping)

        def gone(_: ref[Mapping]) -> None:
            self._mapped.pop(key, None)
            reading.draw()

        self._mapped[key] = ref(mapping, gone)
        return mapping

    @property
    def num_mapped(self) -> int:
        """Segments of other processes that something here still refers to."""
        return len(self._mapped)
