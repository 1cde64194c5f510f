"""Writing so that a crash at any instant leaves the old state or the new one, and never half."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def flush(file: BinaryIO) -> None:
    """Everything written so far is on the disk when this returns."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """The folder's entries (made, renamed, removed) are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """A file that has all of `data`, or does not exist (or is what it was)."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        flush(file)
    temporary.replace(path)
    flush_folder(path.parent)


def remove(path: Path) -> None:
    """The file is gone, on the disk too."""
    path.unlink(missing_ok=True)
    flush_folder(path.parent)
