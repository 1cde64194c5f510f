"""Checkpoints as they are found: read by name, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from milepost.actors.weights.manifest import INDEX, SINGLE, ManifestError, read_checkpoint


def write_shards(folder: Path, **named: str) -> None:
    """Two shards with a tensor each; the index says of them what `named` says, too."""
    for number, tensor in enumerate(("a", "b")):
        values = np.full((2, 3), number, np.float32)
        save_file({tensor: values}, folder / f"part-{number}.safetensors")
    weight_map = {"a": "part-0.safetensors", "b": "part-1.safetensors", **named}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def write_header(path: Path, entry: object, num_bytes: int = 8) -> None:
    """A safetensors file of one tensor that says this of itself."""
    header = json.dumps({"a": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    """Where each tensor lies, without its bytes being read."""
    write_shards(tmp_path)
    places = read_checkpoint(tmp_path)
    assert {name: place.file.name for name, place in places.items()} == {
        "a": "part-0.safetensors",
        "b": "part-1.safetensors",
    }
    for number, place in enumerate(places.values()):
        data = place.file.read_bytes()[place.offset : place.offset + place.nbytes]
        assert (np.frombuffer(data, np.float32) == number).all()


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"weight_map": {"a": 3}}'])
def test_an_index_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """It comes from somebody else's converter; what is wrong with it must be readable."""
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ManifestError, match="is no index of a checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"c": "part-0.safetensors"}, "names c, and no file has it"),
        ({"c": "part-2.safetensors"}, "part-2.safetensors does not exist"),
        ({"c": "../../elsewhere.safetensors"}, "lies in another folder"),
        ({"c": "/etc/hostname"}, "lies in another folder"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(
    tmp_path: Path, named: dict[str, str], told: str
) -> None:
    """A version would lack a tensor, or hold one of another folder."""
    write_shards(tmp_path, **named)
    with pytest.raises(ManifestError, match=told):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({}, "cannot be read: Object missing required field `dtype`"),
        ("F32", "cannot be read: Expected `object`"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0]}, "of length 2"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "Expected `int` >= 0"),
        ({"dtype": "F4", "shape": [2], "data_offsets": [0, 8]}, "is F4, which cannot be moved"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "needs 8 bytes"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "the file has 8"),
    ],
)
def test_a_header_that_is_damaged_is_refused(tmp_path: Path, entry: object, told: str) -> None:
    """Read as it stands, it would give a tensor bytes of another one."""
    write_header(tmp_path / SINGLE, entry)
    with pytest.raises(ManifestError, match=told):
        read_checkpoint(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    """A wrong path must say what was looked for."""
    with pytest.raises(ManifestError, match=r"model\.safetensors does not exist"):
        read_checkpoint(tmp_path)
