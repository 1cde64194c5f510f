"""Checksums over the full new bytes of a tensor, fed piece by piece."""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Final, Literal, Protocol, TypeAlias

import xxhash

ChecksumName: TypeAlias = Literal["xxh3-128", "blake3", "adler32"]
HEX_DIGITS: Final = {"xxh3-128": 32, "blake3": 64, "adler32": 8}


class Checksum(Protocol):
    """Of everything it was given so far."""

    def update(self, data: memoryview, /) -> object:
        """Take the next bytes."""
        ...

    def hexdigest(self) -> str:
        """Lower-case hex, `HEX_DIGITS` long."""
        ...


class Adler32:
    """Adler-32 (RFC 1950), seeded with 1: quick, and too weak for anything but accidents."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        """8 hex digits."""
        return f"{self._value:08x}"


def new_checksum(name: str) -> Checksum:
    """A checksum that has seen nothing yet.

    Raises:
        ValueError: no checksum has this name.
        ModuleNotFoundError: blake3 is asked for, and its package (extra `blake3`) is missing.
    """
    match name:
        case "xxh3-128":
            return xxhash.xxh3_128()
        case "blake3":
            made: Checksum = import_module("blake3").blake3()
            return made
        case "adler32":
            return Adler32()
        case _:
            known = ", ".join(HEX_DIGITS)
            raise ValueError(f"no checksum is called {name!r}, known are {known}")


def checksum_of(name: str, data: memoryview) -> str:
    """Hex checksum of one buffer."""
    checksum = new_checksum(name)
    checksum.update(data)
    return checksum.hexdigest()
