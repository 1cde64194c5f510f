"""Disk-delta's encoder beside a rival's and beside the limits of the machine, in one run.

    pytest tests/bench/bench_delta.py -s                 all of it: 1.19 GB, about 5 GB of memory
    BENCH_DELTA_MB=256 pytest tests/bench/bench_delta.py -s   a smaller model on a busy machine

The rival is what is known of another system's publisher, written again: for each tensor the xor of
all its bytes, zstd level 1 over it, a checksum of the new bytes, two threads; then one safetensors
file, flushed and renamed. Rounds alternate, and the best of each side counts. Wall time decides on
a quiet machine; CPU time is the fair figure on a shared one.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xxhash
import zstandard
from numpy.typing import NDArray
from safetensors.numpy import save_file

from milepost.actors.weights.arena import Arena
from milepost.actors.weights.encoder import Encoded, Encoder
from milepost.actors.weights.files import flush, write_whole
from milepost.actors.weights.local_copy import patch
from milepost.actors.weights.manifest import Layout
from milepost.actors.weights.versions import Facts, VersionIndex
from milepost.messages.engine import TensorSpec

SIZE_MB = int(os.environ.get("BENCH_DELTA_MB", "1190"))
ROUNDS = int(os.environ.get("BENCH_DELTA_ROUNDS", "2"))
WORKERS = 2
HIDDEN = 1024


class Timed(NamedTuple):
    wall_s: float
    cpu_s: float


def cpu_now() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)


def timed(act: Callable[[], Any]) -> tuple[Timed, Any]:
    wall, cpu = time.perf_counter(), cpu_now()
    result = act()
    return Timed(time.perf_counter() - wall, cpu_now() - cpu), result


def model() -> tuple[TensorSpec, ...]:
    """An embedding of a quarter of the bytes, and layers of matrices, in bfloat16."""
    rows = SIZE_MB * 1_000_000 // 2 // HIDDEN
    big = TensorSpec(name="embed", dtype="bfloat16", shape=(rows // 4, HIDDEN))
    count = (rows - rows // 4) // 2048
    layers = [
        TensorSpec(name=f"layer.{number:04d}", dtype="bfloat16", shape=(2048, HIDDEN))
        for number in range(count)
    ]
    return (big, *layers)


def fill(old: Arena, new: Arena, share: float) -> None:
    """Weights of deviation 0.02; afterwards a share of all bytes differs by one unit or two."""
    generator = np.random.default_rng(0)
    for name in old.layout.specs:
        words = old.view(name).view(np.uint16)
        values = generator.standard_normal(len(words), np.float32) * np.float32(0.02)
        words[:] = values.view(np.uint32) >> 16
        step = generator.integers(-2, 3, len(words), np.int16)
        hit = generator.random(len(words), np.float32) < 2.5 * share
        new.view(name).view(np.uint16)[:] = words + (step * hit).view(np.uint16)


def rival(folder: Path, old: Arena, new: Arena) -> int:
    """Bytes written."""

    def encode(name: str) -> tuple[str, NDArray[np.uint8], str]:
        difference = np.bitwise_xor(old.view(name), new.view(name))
        packed = zstandard.ZstdCompressor(level=1).compress(difference.data)
        return name, np.frombuffer(packed, np.uint8), xxhash.xxh3_128_hexdigest(new.view(name).data)

    with ThreadPoolExecutor(WORKERS) as threads:
        done = list(threads.map(encode, old.layout.specs))
    path = folder / "model-00000-of-00001.safetensors.tmp"
    save_file({name: data for name, data, _ in done}, path, {name: sum_ for name, _, sum_ in done})
    with path.open("r+b") as file:
        flush(file)
    path.replace(path.with_suffix(""))
    write_whole(folder / "model.safetensors.index.json", b"{}")
    return sum(len(data) for _, data, _ in done)


def limits(old: Arena, new: Arena, folder: Path) -> dict[str, float]:
    """Seconds for the same bytes: copied once, compressed at level 1 by one core, written plain."""
    names = list(new.layout.specs)

    def copy() -> None:
        for name in names:
            old.view(name).copy()

    def write() -> None:
        with (folder / "plain").open("wb") as file:
            for name in names:
                file.write(new.view(name).data)
            flush(file)

    compressor = zstandard.ZstdCompressor(level=1)
    copied, _ = timed(copy)
    packed, _ = timed(lambda: [compressor.compress(new.view(name).data) for name in names[1:9]])
    part = sum(new.layout.nbytes(name) for name in names[1:9]) / new.layout.total
    written, _ = timed(write)
    (folder / "plain").unlink()
    return {"memory copy": copied.wall_s, "zstd 1": packed.cpu_s / part, "write": written.wall_s}


def index_of(encoded: Encoded) -> VersionIndex:
    facts = Facts(
        version="000001",
        base_version="000000",
        delta_encoding="chunks",
        checksum_format="xxh3-128",
        digest="",
        base_digest="",
    )
    return VersionIndex(metadata=facts, weight_map=encoded.weight_map, encodings=encoded.encodings)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [0.02, 0.30])
def test_the_encoder_beats_the_rival_in_time_and_bytes(tmp_path: Path, share: float) -> None:
    layout = Layout(model())
    old, new = Arena(layout), Arena(layout)
    fill(old, new, share)
    encoder = Encoder((old, new), workers=WORKERS, encoding="chunks", checksum="xxh3-128")
    ours: list[Timed] = []
    theirs: list[Timed] = []
    encoded, rival_bytes = None, 0
    for number in range(ROUNDS):
        folders = [tmp_path / f"{side}{number}" for side in ("ours", "rival")]
        for folder in folders:
            folder.mkdir()
        encode = partial(encoder.encode, folders[0], old=0, new=1, deadline_s=600)
        wall, encoded = timed(encode)
        ours.append(Timed(wall.wall_s, encoded.cpu_s))
        took, rival_bytes = timed(partial(rival, folders[1], old, new))
        theirs.append(took)
    assert encoded is not None
    index = index_of(encoded)
    folder = tmp_path / f"ours{ROUNDS - 1}"
    applied, _ = timed(lambda: patch(index, folder, old.view, layout, threads=WORKERS))
    assert all(np.array_equal(old.view(name), new.view(name)) for name in layout.specs)
    encoder.close()
    bounds = limits(old, new, tmp_path)
    mine, other = (Timed(*map(min, zip(*side, strict=True))) for side in (ours, theirs))
    changed = encoded.num_changed / layout.total
    print(
        f"\n{layout.total / 1e9:.2f} GB bfloat16, {changed:.1%} of bytes changed, "
        f"{WORKERS} workers\n"
        f"  ours   {mine.wall_s:.2f} s wall, {mine.cpu_s:.2f} s CPU, "
        f"{encoded.file_bytes / 1e6:.1f} MB ({encoded.file_bytes / layout.total:.1%})\n"
        f"  rival  {other.wall_s:.2f} s wall, {other.cpu_s:.2f} s CPU, {rival_bytes / 1e6:.1f} MB "
        f"({rival_bytes / layout.total:.1%})\n"
        f"  apply  {applied.wall_s:.2f} s wall, {applied.cpu_s:.2f} s CPU, {WORKERS} threads\n"
        f"  limits {', '.join(f'{name} {seconds:.2f} s' for name, seconds in bounds.items())}"
    )
    assert encoded.file_bytes < rival_bytes
    assert mine.cpu_s < other.cpu_s
    assert applied.cpu_s < mine.cpu_s
