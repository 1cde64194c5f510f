"""A version is applied by several threads: all of it, or an error that says which tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from milepost.actors.weights.arena import Arena
from milepost.actors.weights.chunks import PayloadError
from milepost.actors.weights.local_copy import patch
from milepost.actors.weights.manifest import Layout, ManifestError
from milepost.actors.weights.payloads import PayloadWriter
from milepost.actors.weights.shards import ShardWriter
from milepost.actors.weights.versions import Facts, VersionIndex
from milepost.messages.engine import TensorSpec

SIZES = (40_000, 8, 300_000, 2, 90_000, 4_000, 70_000)
FILES = ("a.safetensors", "b.safetensors")
THREADS = (1, 2, 3, 16)


def made(folder: Path) -> tuple[VersionIndex, Arena, Arena, Layout]:
    """A version in two files, with the bytes before and after it; one tensor did not change."""
    specs = [TensorSpec(name=f"t{i}", dtype="bfloat16", shape=(n,)) for i, n in enumerate(SIZES)]
    layout = Layout(specs)
    old, new = Arena(layout), Arena(layout)
    generator = np.random.default_rng(7)
    writers = [ShardWriter(folder / file, list(layout.specs), "xxh3-128") for file in FILES]
    writer = PayloadWriter("chunks", "xxh3-128")
    weight_map: dict[str, str] = {}
    encodings: dict[str, str] = {}
    for number, name in enumerate(layout.specs):
        before, after = old.view(name), new.view(name)
        before[:] = generator.integers(0, 256, len(before), np.uint8)
        after[:] = before
        if number != 3:
            after[generator.random(len(after)) < 0.1] ^= 1
            after[0] ^= 2
        shard = number % len(FILES)
        payload = writers[shard].add(writer, name, before, after, layout.itemsize(name))
        if payload.encoding:
            weight_map[name], encodings[name] = FILES[shard], payload.encoding
    for each in writers:
        each.finish()
    facts = Facts(
        version="000001",
        base_version="000000",
        delta_encoding="chunks",
        checksum_format="xxh3-128",
        digest="",
        base_digest="",
    )
    return (
        VersionIndex(metadata=facts, weight_map=weight_map, encodings=encodings),
        old,
        new,
        layout,
    )


@pytest.mark.parametrize("threads", THREADS)
def test_all_tensors_are_the_new_ones_with_any_number_of_threads(
    tmp_path: Path, threads: int
) -> None:
    index, old, new, layout = made(tmp_path)
    patch(index, tmp_path, old.view, layout, threads=threads)
    assert old.digest() == new.digest()


@pytest.mark.parametrize("threads", THREADS)
def test_a_damaged_tensor_is_named_whichever_thread_meets_it(tmp_path: Path, threads: int) -> None:
    """Its base had other bytes, which only the checksum of the new ones can tell."""
    index, old, _, layout = made(tmp_path)
    old.view("t4")[5] ^= 1
    with pytest.raises(PayloadError, match="t4 has xxh3-128"):
        patch(index, tmp_path, old.view, layout, threads=threads)


def test_a_version_with_a_tensor_that_the_copy_lacks_changes_nothing(tmp_path: Path) -> None:
    index, old, _, layout = made(tmp_path)
    before = old.digest()
    fewer = Layout([spec for name, spec in layout.specs.items() if name != "t1"])
    with pytest.raises(PayloadError, match="has a tensor t1, the copy not"):
        patch(index, tmp_path, old.view, fewer, threads=2)
    assert old.digest() == before


def test_a_version_without_one_of_its_files_changes_nothing(tmp_path: Path) -> None:
    index, old, _, layout = made(tmp_path)
    before = old.digest()
    (tmp_path / FILES[1]).unlink()
    with pytest.raises(ManifestError, match="does not exist"):
        patch(index, tmp_path, old.view, layout, threads=2)
    assert old.digest() == before
