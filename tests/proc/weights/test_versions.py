"""Versions on the disk: complete or not there, on one lineage, and never half in anybody's copy."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from proc.weights.kit import Scene, bulk, digest, moved, specs_of
from safetensors import safe_open

from milepost.actors.weights.encoder import EncodeFailed
from milepost.actors.weights.manifest import INDEX, ManifestError
from milepost.actors.weights.payloads import Encoding
from milepost.actors.weights.versions import LineageError, State


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.mark.parametrize("encoding", ["chunks", "xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "adler32"])
def test_a_host_follows_version_by_version(
    tmp_path: Path, encoding: Encoding, checksum: str
) -> None:
    scene = Scene(tmp_path, encoding=encoding, checksum=checksum)
    try:
        scene.publish(0, scene.tensors)
        assert scene.pull(0).made_anew == "there was no whole copy"
        for version in (1, 2):
            scene.publish(version)
            assert scene.pull(version) == (1, "")
    finally:
        scene.close()


def test_the_layout_is_the_one_that_others_read(tmp_path: Path) -> None:
    """Folder, shard and index names, metadata of both, payloads as uint8 under tensor names."""
    scene = Scene(tmp_path, encoding="xor")
    scene.publish(0, scene.tensors)
    scene.publish(1)
    scene.close()
    folder = tmp_path / "versions" / "weight_v000001"
    assert sorted(path.name for path in folder.iterdir()) == [
        "model-00000-of-00001.safetensors",
        INDEX,
    ]
    index = json.loads((folder / INDEX).read_bytes())
    wanted = {
        "version": "000001",
        "base_version": "000000",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    assert {key: index["metadata"][key] for key in wanted} == wanted
    assert index["weight_map"] == {"wide": "model-00000-of-00001.safetensors"}
    with safe_open(folder / "model-00000-of-00001.safetensors", "np") as shard:
        assert list(shard.keys()) == ["wide"]
        assert shard.get_tensor("wide").dtype == np.uint8
        assert len(shard.metadata()["wide"]) == 32


def test_nothing_changed_makes_an_index_without_files(scene: Scene) -> None:
    artifact = scene.write(0)
    assert (artifact.density, artifact.file_bytes) == (0.0, 0)
    assert scene.versions.read(0).weight_map == {}


def test_density_counts_changed_bytes_once(scene: Scene) -> None:
    scene.publish(0, scene.tensors)
    after = moved(scene.tensors, 1)
    pairs = [(scene.tensors[name].tobytes(), after[name].tobytes()) for name in after]
    num_changed = sum(a != b for old, new in pairs for a, b in zip(old, new, strict=True))
    total = sum(len(old) for old, _ in pairs)
    assert scene.write(1, after).density == pytest.approx(num_changed / total)


def test_a_host_that_was_away_catches_up_over_several_versions(scene: Scene) -> None:
    scene.publish(0, scene.tensors)
    scene.pull(0)
    for version in (1, 2, 3):
        scene.publish(version)
    assert scene.pull(3) == (3, "")


def test_the_next_difference_stands_on_what_engines_confirmed(scene: Scene) -> None:
    """Version 2 never arrived: had 3 been made from it, no engine could ever load it."""
    scene.publish(0, scene.tensors)
    scene.publish(1)
    scene.pull(1)
    scene.write(2, moved(scene.tensors, 2))
    scene.publish(3, moved(scene.tensors, 3))
    assert scene.versions.read(3).base.version == 1
    assert scene.folders() == ["weight_v000000", "weight_v000001", "weight_v000003"]
    assert scene.pull(3) == (1, "")


def test_a_host_that_took_an_abandoned_version_begins_anew(scene: Scene) -> None:
    """Its bytes are on no lineage any more; it says so, and ends with the right ones."""
    scene.publish(0, scene.tensors)
    scene.write(1, moved(scene.tensors, 1))
    scene.pull(1)
    scene.publish(2, moved(scene.tensors, 2))
    brought = scene.pull(2)
    assert "no chain" in brought.made_anew


def test_replicas_with_different_bytes_are_refused(scene: Scene) -> None:
    """Two pipeline stages that hold one tensor must agree; which of them is right, nobody knows."""
    writer = scene.open(0)
    same = [(name, bulk(values)) for name, values in scene.tensors.items()]
    writer.write(0, digest(scene.tensors), [*same, ("norm", bulk(scene.tensors["norm"]))])
    other = scene.tensors["norm"] + np.float32(1)
    with pytest.raises(EncodeFailed, match="two replicas of norm have different bytes"):
        writer.write(1, digest(scene.tensors), [*same, ("norm", bulk(other))])
    assert scene.versions.complete() == [0]


def test_an_encoder_that_died_costs_one_version_and_no_later_one(scene: Scene) -> None:
    """One stall of a disk beyond the deadline would otherwise end the run, three versions later."""
    scene.publish(0)
    assert scene.writer is not None
    (worker,) = scene.writer._encoder._workers
    worker._process.kill()
    worker._process.wait()
    changed = moved(scene.tensors, 1)
    with pytest.raises(EncodeFailed, match="ended with code -9"):
        scene.write(1, changed)
    scene.publish(1, changed)
    scene.pull(1)


def test_a_closed_encoder_starts_no_process(scene: Scene) -> None:
    """None would be there to end it: the publisher's loop closes, its thread may write a next."""
    scene.publish(0)
    assert scene.writer is not None
    encoder = scene.writer._encoder
    scene.close()
    with pytest.raises(EncodeFailed, match="the encoder is closed"):
        encoder.encode(scene.root, old=-1, new=0, deadline_s=60.0)
    assert encoder._workers == []


def test_an_encoder_is_closed_under_the_hands_of_the_thread_that_encodes(scene: Scene) -> None:
    """A worker that hangs holds up no end; the thread hears of it as of every other failure."""
    scene.publish(0)
    assert scene.writer is not None
    encoder = scene.writer._encoder
    (worker,) = encoder._workers
    worker._process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        encoded = pool.submit(encoder.encode, scene.root, old=-1, new=0, deadline_s=60.0)
        scene.close()
        with pytest.raises(EncodeFailed, match=r"ended with code -9|the encoder is closed"):
            encoded.result(timeout=30.0)
    assert encoder._workers == []


def test_what_came_must_be_what_was_announced(scene: Scene) -> None:
    writer = scene.open(0)
    came = [(name, bulk(values)) for name, values in scene.tensors.items()]
    with pytest.raises(EncodeFailed, match="announced was 0000"):
        writer.write(0, "0000", came)
    with pytest.raises(EncodeFailed, match="1 tensors never came: wide"):
        writer.write(0, digest(scene.tensors), came[:-1])
    turned = [*came[:-1], ("wide", bulk(scene.tensors["wide"].reshape(33, 64)))]
    with pytest.raises(EncodeFailed, match="wide came as"):
        writer.write(0, digest(scene.tensors), turned)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"wide": None}, "has wide, which the version has not"),
        ({"more": np.zeros(2, np.float32)}, "lacks more"),
        ({"norm": np.zeros(8, np.float32)}, r"norm as float32 \(7,\) \(28 bytes\)"),
        ({"norm": np.zeros(7, np.float16)}, r"float16 \(7,\) \(14 bytes\)"),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_a_version_that_the_baseline_does_not_fit_is_refused_by_name(
    scene: Scene, change: dict[str, np.ndarray | None], told: str
) -> None:
    """Before anything is trained: a difference to other bytes would be noise."""
    tensors = {**scene.tensors, **change}
    scene.tensors = {name: values for name, values in tensors.items() if values is not None}
    with pytest.raises(ManifestError, match=told):
        scene.open(0)


def test_a_writer_that_starts_again_goes_on_from_the_confirmed_version(scene: Scene) -> None:
    scene.publish(0, scene.tensors)
    scene.publish(1)
    confirmed = State(version=1, digest=digest(scene.tensors))
    scene.write(2, moved(scene.tensors, 2))
    assert scene.open(first=3).state == confirmed
    assert scene.folders() == ["weight_v000000", "weight_v000001"], "2 was never confirmed"
    scene.publish(3)
    scene.pull(3)


def test_a_resumed_run_forgets_the_future_that_it_left(scene: Scene) -> None:
    """Versions 2 and 3 were trained after the checkpoint; the run begins again at 2."""
    scene.publish(0, scene.tensors)
    scene.publish(1)
    at_checkpoint = moved(scene.tensors, 2)
    scene.publish(2, at_checkpoint)
    scene.publish(3)
    scene.pull(3)
    scene.open(first=2)
    assert scene.folders() == ["weight_v000000", "weight_v000001"]
    scene.publish(2, at_checkpoint)
    assert scene.pull(2).made_anew
    scene.publish(3)
    assert scene.pull(3) == (1, "")


def test_a_full_version_takes_the_place_of_old_differences(tmp_path: Path) -> None:
    """Disks fill up otherwise, and a new host would replay a whole training run."""
    scene = Scene(tmp_path, keep=3)
    scene.publish(0, scene.tensors)
    for version in range(1, 6):
        scene.publish(version)
        scene.pull(version)
    assert scene.folders() == ["full_v000003", *[f"weight_v00000{n}" for n in (3, 4, 5)]]
    assert scene.pull(5, "new host").num_versions == 2
    assert scene.open(first=6).state.version == 5
    scene.close()


def test_a_version_that_somebody_still_serves_outlives_the_full_ones(tmp_path: Path) -> None:
    """An evaluation measures it for as long as it takes, and its engines may start again."""
    scene = Scene(tmp_path, keep=2)
    for version in range(8):
        scene.write(version, moved(scene.tensors, version))
        assert scene.writer is not None
        scene.writer.confirm(version, oldest=min(version, 3))
        if version == 3:
            measured = dict(scene.tensors)
    assert scene.folders()[0] == "full_v000002", scene.folders()
    newest, scene.tensors = scene.tensors, measured
    assert scene.pull(3, "new").made_anew
    scene.tensors = newest
    scene.publish(8)
    assert scene.folders()[0] == f"full_v{max(scene.versions.full()):06d}", scene.folders()
    scene.close()


def test_versions_that_are_not_there_are_told_with_those_that_are(scene: Scene) -> None:
    scene.publish(0, scene.tensors)
    with pytest.raises(LineageError, match=r"version 7 is not complete .*, complete are 0"):
        scene.pull(7)


def test_a_version_without_its_index_is_not_there(scene: Scene) -> None:
    scene.publish(0, scene.tensors)
    scene.publish(1)
    (scene.versions.folder(1) / INDEX).unlink()
    assert scene.versions.complete() == [0]


def test_a_damaged_shard_is_seen_and_the_copy_made_anew(scene: Scene) -> None:
    """The checksum is of the tensor, so any way to wrong bytes is seen, not only a bad disk."""
    scene.publish(0, scene.tensors)
    scene.pull(0)
    scene.publish(1)
    shard = next(scene.versions.folder(1).glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"wide|damaged"):
        scene.pull(1)
    assert scene.copy().state() is None, "a half patched copy says nothing"
    shard.write_bytes(whole)
    assert scene.pull(1).made_anew == "there was no whole copy"


def test_tensors_must_come_in_the_order_of_their_names(scene: Scene) -> None:
    """The digest is over an order; two sides with two orders would never agree."""
    writer_specs = specs_of(scene.tensors)[::-1]
    from milepost.actors.weights.delta_writer import DeltaSettings, DeltaWriter

    settings = DeltaSettings(
        root=scene.root / "versions",
        baseline=scene.root / "baseline",
        encoding="chunks",
        checksum="xxh3-128",
        workers=1,
        keep=1,
        deadline_s=1.0,
    )
    with pytest.raises(ManifestError, match="sorted by name"):
        DeltaWriter(settings, writer_specs, 0)
