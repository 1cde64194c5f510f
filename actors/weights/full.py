"""One version in full, as an ordinary folder of safetensors: where new readers begin."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from milepost.actors.weights.files import flush, flush_folder, write_whole
from milepost.actors.weights.manifest import DTYPES, INDEX, SINGLE, Layout

if TYPE_CHECKING:
    from milepost.actors.weights.arena import Arena
    from milepost.actors.weights.versions import State

STATE: Final = "state.json"
_WORDS: Final = {word: name for name, word in DTYPES.items()}


def write_full(folder: Path, arena: Arena, state: State) -> None:
    """Write every tensor; the index comes last.

    Args:
        folder: is made; what lay there is removed.
        arena: with the bytes.
        state: which version they are.
    """
    if folder.exists():
        (folder / INDEX).unlink(missing_ok=True)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    layout = arena.layout
    header = plain_header(layout)
    with (folder / SINGLE).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in layout.specs:
            file.write(arena.view(name).data)
        flush(file)
    write_whole(folder / STATE, msgspec.json.encode(state))
    index = {"metadata": {}, "weight_map": dict.fromkeys(layout.specs, SINGLE)}
    write_whole(folder / INDEX, msgspec.json.encode(index))
    flush_folder(folder.parent)


def plain_header(layout: Layout) -> bytes:
    """Header of a safetensors file with these tensors one after the other."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, spec in layout.specs.items():
        end = at + layout.nbytes(name)
        entries[name] = {
            "dtype": _WORDS[spec.dtype],
            "shape": spec.shape,
            "data_offsets": [at, end],
        }
        at = end
    header = msgspec.json.encode(entries)
    return header.ljust(-(-len(header) // 8) * 8)
