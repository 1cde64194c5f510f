"""Append-only files of checksummed records, for state that must survive kill -9.

A record is `length (uint32), xxh3-64 of the payload (uint64), payload`, little-endian. Appending
is one `write`, so a killed process loses at most its last, torn record: reading stops there, and
opening for append cuts it off. A bad record with good ones behind it is damage, not a torn tail,
and is refused by name.

Durability: a `write` survives the death of the process; only `sync` survives the death of the
machine. Owners of a journal say when they call it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import xxhash

HEADER: Final = Struct("<IQ")
RECORD_BYTES_MAX: Final = 1 << 31


class JournalDamaged(RuntimeError):
    """A record in the middle of a journal does not match its checksum."""


def frame(payload: bytes) -> bytes:
    """One record, ready to be appended.

    Raises:
        ValueError: a payload of 2 GiB or more.
    """
    if len(payload) >= RECORD_BYTES_MAX:
        raise ValueError(f"record of {len(payload)} bytes, the limit is {RECORD_BYTES_MAX}")
    return HEADER.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload


class JournalFile:
    """One file of records, open for appending.

    Args:
        path: created when missing, its torn tail cut off when there is one.

    Raises:
        JournalDamaged: see `read_records`.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        size = sum(HEADER.size + len(payload) for payload in read_records(path))
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def append(self, payloads: Iterable[bytes]) -> int:
        """Append records in one write; returns the bytes written.

        Raises:
            OSError: the disk is full; the file keeps its old length.
        """
        data = memoryview(b"".join(map(frame, payloads)))
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            self._file.truncate(self.size)
            self._file.seek(self.size)
            raise
        self.size += written
        return written

    def sync(self) -> None:
        """Return when the records would survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; nothing is pending, writes are not buffered."""
        self._file.close()


def read_records(path: Path) -> Iterator[bytes]:
    """The payloads of a journal, in order, up to a torn tail. A missing file has none.

    Raises:
        JournalDamaged: a record fails its checksum and is not the last thing in the file.
    """
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        while len(header := file.read(HEADER.size)) == HEADER.size:
            length, digest = HEADER.unpack(header)
            if file.tell() + length > size:
                return
            payload = file.read(length)
            if xxhash.xxh3_64_intdigest(payload) != digest:
                if file.tell() == size:
                    return
                raise JournalDamaged(
                    f"{path}: the record at byte {file.tell() - length} fails its checksum and "
                    f"{size - file.tell()} bytes follow it; restore the file or start a fresh run"
                )
            yield payload


def replace_file(path: Path, payloads: Iterable[bytes]) -> None:
    """Put a new journal in the place of `path`; at any moment the old or the new one is whole."""
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.unlink(missing_ok=True)
    journal = JournalFile(fresh)
    journal.append(payloads)
    journal.sync()
    journal.close()
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
