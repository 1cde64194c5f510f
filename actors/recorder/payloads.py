"""The contents of a full recording, by content address: an append-only file beside the ring.

Written on a thread of its own; the event loop only hands bytes over, and stops keeping them, for
good and by name, when the disk does not follow or the file is full.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import Struct as Form
from typing import Final

from milepost.actors.recorder.content import address_of

PENDING_BYTES_MAX: Final = 64 << 20
"""Handed over and not written."""
_HEAD: Final = Form("<QQ")


class Payloads:
    """The writer's side.

    Args:
        path: made anew.
        bytes_max: size at which it is full.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._bytes_max = bytes_max
        # Each is changed by one thread only.
        self._handed_bytes = self._written_bytes = 0
        self._known: set[int] = set()
        self._is_torn = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recorder")
        self.ended = ""
        """Why nothing more is kept; empty while everything is."""

    def keep(self, content: bytes) -> int:
        """Keep it; returns its address."""
        address = address_of(content)
        if self.ended or address in self._known:
            return address
        size = _HEAD.size + len(content)
        pending = self._handed_bytes - self._written_bytes
        if self._handed_bytes + size > self._bytes_max:
            self.ended = f"system.recorder.payload_bytes_max = {self._bytes_max} was reached"
        elif pending + size > PENDING_BYTES_MAX:
            self.ended = f"{pending} bytes waited for the disk"
        else:
            self._handed_bytes += size
            self._known.add(address)
            self._thread.submit(self._write, _HEAD.pack(address, len(content)) + content)
        return address

    def _write(self, data: bytes) -> None:
        # Behind a torn one nothing is found any more.
        if not self._is_torn:
            try:
                self._write_whole(memoryview(data))
            except OSError as error:
                self._is_torn = True
                self.ended = f"they cannot be written: {error}"
        self._written_bytes += len(data)

    def _write_whole(self, data: memoryview) -> None:
        # A disk that fills up takes a part first, and refuses only the next one.
        while len(data):
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Write what was handed over."""
        self._thread.shutdown()
        self._file.close()


def read_payloads(path: Path, damaged: list[str] | None = None) -> Iterator[tuple[int, bytes]]:
    """Addresses and contents in order, up to a torn end; a missing file has none.

    Args:
        path: of the file.
        damaged: gets a line, at the end, if something is not whole: what is so first, and how many
            more places are.
    """
    if not path.exists():
        return
    first, count = "", 0
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END)
        file.seek(0)
        while left > 0:
            place = file.tell()
            head = file.read(_HEAD.size)
            address, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, left)
            left -= _HEAD.size + length
            # Torn, or zeros, as a machine that died leaves them at the end, or its length is
            # damaged: where the next one begins is not known.
            is_last = left < 0 or not any(head)
            content = b"" if is_last else file.read(length)
            if not is_last and address_of(content) == address:
                yield address, content
                continue
            count += 1
            what = f"a content of {length} bytes is damaged"
            first = first or f"byte {place}: {'nothing whole from there on' if is_last else what}"
            if is_last:
                break
    if damaged is not None and first:
        more = f", and {count - 1} more places are not whole" if count > 1 else ""
        damaged.append(f"{path}, {first}{more}")
