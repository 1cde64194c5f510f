"""Golden bytes: what every message of every protocol version looks like on the wire.

`make golden` writes the file of the current version, tests/wire/golden/MAJOR.MINOR.json: for each
type the body of its example and its buffer frames, in hex. Files of older versions are never
written again: they are what old peers send. Once a version is released its file only grows by new
types.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, TypeAlias

from milepost.messages.codec import Codec
from milepost.messages.envelope import PROTOCOL
from milepost.messages.examples import examples

FOLDER: Final = Path(__file__).parent / "golden"

Golden: TypeAlias = dict[str, list[str]]
"""Message type -> body and buffer frames, hex."""


def path_of(version: tuple[int, int]) -> Path:
    return FOLDER / f"{version[0]}.{version[1]}.json"


def versions() -> list[tuple[int, int]]:
    """Every version that has a file, oldest first."""
    found = [tuple(map(int, path.stem.split("."))) for path in FOLDER.glob("*.json")]
    return sorted((major, minor) for major, minor in found)


def read(version: tuple[int, int]) -> Golden:
    golden: Golden = json.loads(path_of(version).read_text(encoding="utf-8"))
    return golden


def current() -> Golden:
    """What the code makes now."""
    codec = Codec()
    golden: Golden = {}
    for message in examples():
        encoded = codec.encode(message)
        golden[encoded.type] = [bytes(frame).hex() for frame in encoded.frames()]
    return golden


def main() -> None:
    """Write the file of the current version."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(current(), indent=0, sort_keys=True)
    path_of(PROTOCOL).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
