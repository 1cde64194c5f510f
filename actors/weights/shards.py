"""One file of a version: a safetensors file of payloads, written as they are made."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from milepost.actors.weights.checksums import HEX_DIGITS
from milepost.actors.weights.files import flush
from milepost.actors.weights.manifest import ManifestError, read_json_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from milepost.actors.weights.payloads import Payload, PayloadWriter

_NUMBER_DIGITS: Final = 20
_ENTRY: Final = len('"":{"dtype":"U8","shape":[],"data_offsets":[,]},') + 3 * _NUMBER_DIGITS
_FRAME: Final = len('{"__metadata__":{}}') + 8


class ShardWriter:
    """Writes payloads behind room for a header that is known only at the end.

    The header of a safetensors file may end in spaces; so nothing written is moved again.

    Args:
        path: of the file to be; what is written lies beside it under `.tmp` until `finish`.
        names: every tensor that may come.
        checksum: name of the checksum.
    """

    def __init__(self, path: Path, names: Sequence[str], checksum: str) -> None:
        self.path = path
        each = _ENTRY + len('"":"",') + HEX_DIGITS[checksum]
        room = _FRAME + sum(each + 2 * len(json.dumps(name)) for name in names)
        self._room = -(-room // 8) * 8
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._file = self._temporary.open("w+b")
        self._file.seek(8 + self._room)
        self._metadata: dict[str, str] = {}
        self._entries: dict[str, dict[str, object]] = {}
        self._at = 0

    def add(
        self,
        writer: PayloadWriter,
        name: str,
        old: NDArray[np.uint8],
        new: NDArray[np.uint8],
        itemsize: int,
    ) -> Payload:
        """Append one tensor; one that did not change leaves no trace."""
        payload = writer.write(self._file, old, new, itemsize)
        if payload.encoding:
            end = self._at + payload.nbytes
            self._entries[name] = {
                "dtype": "U8",
                "shape": [payload.nbytes],
                "data_offsets": [self._at, end],
            }
            self._metadata[name] = payload.checksum
            self._at = end
        return payload

    def finish(self) -> int:
        """Write the header, flush, and rename; without any tensor, the file is removed.

        Returns:
            Bytes of the file; 0 without one.
        """
        if not self._entries:
            self._file.close()
            self._temporary.unlink()
            return 0
        header = msgspec.json.encode({"__metadata__": self._metadata, **self._entries})
        assert len(header) <= self._room, (len(header), self._room)
        self._file.truncate(8 + self._room + self._at)
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + header.ljust(self._room))
        flush(self._file)
        self._file.close()
        self._temporary.replace(self.path)
        return 8 + self._room + self._at

    def abandon(self) -> None:
        """Close the file; whoever opened the folder removes it."""
        self._file.close()


class ShardReader:
    """Payloads and checksums of one file.

    Args:
        path: of the file.

    Raises:
        ManifestError: it is missing, damaged, or cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        header, start = read_json_header(path)
        metadata = header.pop("__metadata__", {})
        self.checksums: dict[str, str] = msgspec.convert(metadata, dict[str, str])
        self._ranges: dict[str, tuple[int, int]] = {}
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, entry in header.items():
            begin, end = msgspec.convert(entry, _Entry).data_offsets
            if not 0 <= begin <= end <= len(self._map) - start:
                raise ManifestError(f"{name} in {path} ends at {end}, the file before that")
            self._ranges[name] = (start + begin, start + end)

    def payload(self, name: str) -> memoryview:
        """Bytes of one payload, as they lie in the file."""
        if name not in self._ranges or name not in self.checksums:
            raise ManifestError(f"{self._path} has no payload or no checksum of {name}")
        begin, end = self._ranges[name]
        return memoryview(self._map)[begin:end]

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget the file; the mapping ends with the last view of it."""
        self._ranges.clear()


class _Entry(msgspec.Struct, frozen=True):
    data_offsets: tuple[int, int]
