"""Checkpoints, Hugging Face folders and exported versions."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from torch import Tensor
from unit.trainer.kit import VOCABULARY, batch_of, group, model_classes, write_model

from milepost.actors.arrays import from_bulk
from milepost.actors.session.text.sources import TextHashes
from milepost.actors.trainer.fsdp.blueprint import Blueprint, ordinary_memory, turned_back
from milepost.actors.trainer.fsdp.checkpoint import (
    CheckpointFailed,
    learner_state,
    load_checkpoint,
    read_meta,
    save_checkpoint,
)
from milepost.actors.trainer.fsdp.export import (
    Weights,
    export_tensors,
    export_version,
    probe_rows,
)
from milepost.actors.trainer.fsdp.hugging_face import write_hugging_face
from milepost.actors.trainer.fsdp.learner import Learner
from milepost.actors.trainer.fsdp.shard import ShardedPolicy, whole
from milepost.actors.trainer.fsdp.stored import CheckpointDamaged
from milepost.actors.trainer.rows import Minibatch, read_batch
from milepost.actors.weights.bucketing import unit_of
from milepost.configs.actors import ScheduleConfig
from milepost.configs.run import AlgorithmConfig
from milepost.supervisor.checkpoints import whole_checkpoints
from milepost.supervisor.cleanup.halves import remove_halves

TEXT = TextHashes("aa", "bb")
MakeLearner = Callable[..., Learner]


def minibatches(step: int) -> tuple[Minibatch, ...]:
    groups = [group(f"a{step}", (0.0, 1.0, 0.5)), group(f"b{step}", (1.0, 0.0, 1.0))]
    return read_batch(batch_of(groups, minibatches=2), AlgorithmConfig())


def state(learner: Learner) -> dict[str, Tensor]:
    return {name: whole(tensor).clone() for name, tensor in learner_state(learner).items()}


def save(
    parent: Path,
    learner: Learner,
    step: int,
    keep: int = 2,
    write_hugging_face: Callable[[Path], None] = lambda _: None,
) -> Path:
    return save_checkpoint(
        parent,
        learner,
        step=step,
        trained_group_ids=(f"a{step}",),
        trained_before=step - 1,
        keep=keep,
        text=TEXT,
        write_hugging_face=write_hugging_face,
    )


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    """Weights, moments, learning rate and random state all have to come back."""
    settings = {"schedule": ScheduleConfig(kind="cosine", warmup_steps=2), "steps": 8}
    unbroken, first = make_learner(**settings), make_learner(**settings)
    for step in range(2):
        unbroken.train(minibatches(step), step)
        first.train(minibatches(step), step)
    folder = save(tmp_path, first, 2)
    drawn = torch.rand(3)
    resumed = make_learner(**settings)
    torch.rand(17)
    meta = load_checkpoint(folder, resumed, TEXT)
    assert torch.equal(torch.rand(3), drawn)
    assert meta.step == 2
    assert meta.optimizer_step == 4
    assert meta.trained_group_ids == ("a2",)
    assert meta.trained_before == 1
    assert (meta.tokenizer_hash, meta.template_hash) == ("aa", "bb")
    assert meta.lr == resumed.optimizer.lr == unbroken.optimizer.lr
    outcomes = [learner.train(minibatches(2), 2) for learner in (unbroken, resumed)]
    assert outcomes[0].metrics["train/grad_norm"] == outcomes[1].metrics["train/grad_norm"]
    one, other = state(unbroken), state(resumed)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_appears_whole_and_old_ones_go(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    learner = make_learner()
    for step in (1, 2, 10):
        save(tmp_path, learner, step)
    save(tmp_path, learner, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000010"]
    assert read_meta(tmp_path / "step_000010").step == 10


def test_a_save_that_replaces_a_checkpoint_never_has_less_than_the_old_one(
    make_learner: MakeLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be killed at any line; the only checkpoint of a run must outlive it."""
    learner = make_learner()
    final = save(tmp_path, learner, 1)
    aside = tmp_path / ".step_000001.replaced"
    whole_ones: list[list[str]] = []

    def look() -> None:
        folders = (final, aside)
        whole_ones.append([each.name for each in folders if (each / "meta.json").is_file()])

    def look_around(move: Callable[..., object]) -> Callable[..., object]:
        def moved(*arguments: object, **options: object) -> object:
            look()
            result = move(*arguments, **options)
            look()
            return result

        return moved

    monkeypatch.setattr(Path, "rename", look_around(Path.rename))
    monkeypatch.setattr(shutil, "rmtree", look_around(shutil.rmtree))
    save(tmp_path, learner, 1)
    assert len(whole_ones) >= 6
    assert all(whole_ones)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_what_a_killed_save_left_behind_is_no_checkpoint(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    learner = make_learner()
    whole_one = save(tmp_path, learner, 1)
    partial = tmp_path / ".step_000002.partial"
    shutil.copytree(whole_one, partial)
    (partial / "meta.json").unlink()
    with pytest.raises(CheckpointDamaged, match=r"no meta\.json"):
        load_checkpoint(partial, learner, TEXT)
    save(tmp_path, learner, 2)
    assert not partial.exists()


def test_a_trainer_that_is_killed_while_it_saves_or_forgets_leaves_what_others_know_to_remove(
    make_learner: MakeLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as a checkpoint, and one that is half forgotten has its meta.json still."""
    learner = make_learner()
    parent = tmp_path / "checkpoints"

    def killed(path: Path, **_: object) -> None:
        if "step_000001" in path.name:
            raise KeyboardInterrupt

    for step in (1, 2):
        save(parent, learner, step)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(parent, learner, 3)
    with pytest.raises(KeyboardInterrupt):
        save(parent, learner, 4, write_hugging_face=lambda _: killed(parent / "step_000001"))
    assert whole_checkpoints(tmp_path) == (2, 3)
    names = [Path(each).name for each in remove_halves(tmp_path)]
    assert names == [".step_000001.partial", ".step_000004.partial"]
    assert whole_checkpoints(tmp_path) == (2, 3)


def test_a_checkpoint_that_the_disk_does_not_take_fails_by_name(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    """Torch raises what is no `Exception`, and hides the reason in it."""
    learner = make_learner()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(CheckpointFailed, match=r"cannot be written: rank 0: .*File too large"):
            save(tmp_path, learner, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "step_000001").exists()


def test_a_checkpoint_of_another_model_is_refused_not_loaded_in_part(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    """A partial load leaves random layers, and a run that looks as if it had to relearn."""
    folder = save(tmp_path, make_learner(), 1)
    smaller = write_model(tmp_path / "smaller", num_hidden_layers=1)
    with pytest.raises(CheckpointDamaged, match=r"step_000001 has .*layers\.1.* left over"):
        load_checkpoint(folder, make_learner(folder=smaller), TEXT)
    larger = write_model(tmp_path / "larger", num_hidden_layers=3)
    with pytest.raises(CheckpointDamaged, match=r"step_000001 lacks .*layers\.2.* more$"):
        load_checkpoint(folder, make_learner(folder=larger), TEXT)
    wider = write_model(tmp_path / "wider", intermediate_size=40)
    with pytest.raises(CheckpointDamaged, match=r"not \(40, 16\)"):
        load_checkpoint(folder, make_learner(folder=wider), TEXT)


def test_a_checkpoint_of_another_format_is_refused(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    folder = save(tmp_path, make_learner(), 1)
    meta = msgspec.structs.replace(read_meta(folder), format=99)
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta))
    with pytest.raises(CheckpointDamaged, match="format 99"):
        read_meta(folder)


def sizes_of(architecture: str) -> dict[str, int]:
    if architecture != "qwen3_moe":
        return {}
    return {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe", "llama"])
def test_an_exported_version_is_the_checkpoint_a_hugging_face_reader_would_write(
    architecture: str, make_learner: MakeLearner, tmp_path: Path
) -> None:
    """Names, order, dtypes and bytes; tied weights once; experts one by one as on disk."""
    from safetensors.torch import load_file

    source = write_model(tmp_path / "source", architecture=architecture, **sizes_of(architecture))
    learner = make_learner(folder=source)
    tensors = export_tensors(learner.policy, learner.group, torch.float32)
    expected = load_file(source / "model.safetensors")
    assert list(tensors) == sorted(expected)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def exported(
    learner: Learner,
    *,
    version: int = 0,
    bytes_max: int = 1 << 20,
    dtype: torch.dtype = torch.float32,
) -> Weights:
    blueprint = Blueprint.of(learner.policy, dtype, bytes_max=bytes_max)
    weights = export_version(
        learner.policy, learner.group, blueprint, version=version, allocate=ordinary_memory
    )
    assert weights is not None
    return weights


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_moe", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_is_written_at_once_to_where_it_travels_from(
    architecture: str, dtype: torch.dtype, make_learner: MakeLearner, tmp_path: Path
) -> None:
    """The same tensors as one by one, in memory that was asked for, where one bucket is one piece;
    but experts, which lie fused in memory, are the same parameters in no version."""
    source = write_model(tmp_path / "source", architecture=architecture, **sizes_of(architecture))
    learner = make_learner(folder=source)
    blueprint = Blueprint.of(learner.policy, dtype, bytes_max=4096)
    given: list[memoryview] = []

    def allocate(nbytes: int) -> memoryview:
        given.append(memoryview(bytearray(b"?" * nbytes)))
        return given[-1]

    weights = export_version(learner.policy, learner.group, blueprint, version=3, allocate=allocate)
    assert weights is not None
    assert len(given) == len(weights.buckets)
    assert any("experts" in name for name in blueprint.shapes) == (architecture == "qwen3_moe")
    plain = {name for name in blueprint.shapes if ".experts." not in name}
    assert set(blueprint.kept.values()) == plain
    tensors = export_tensors(learner.policy, learner.group, dtype)
    assert [spec.name for spec in weights.tensors] == list(tensors)
    for bucket, memory in zip(weights.buckets, given, strict=True):
        begin = np.frombuffer(memory, np.uint8).ctypes.data
        for name, bulk in zip(bucket.names, bucket.tensors, strict=True):
            expected = tensors[name]
            assert bulk.shape == tuple(expected.shape)
            assert bytes(bulk.data) == expected.view(torch.uint8).numpy().tobytes()
            offset = np.frombuffer(bulk.data, np.uint8).ctypes.data - begin
            assert offset % 64 == 0
            assert 0 <= offset <= memory.nbytes - bulk.nbytes


def test_a_version_that_lacks_a_tensor_never_leaves(
    make_learner: MakeLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place would have the bytes of an older version, and the digest would agree to them."""
    source = write_model(tmp_path / "source", architecture="qwen3_moe", **sizes_of("qwen3_moe"))
    learner = make_learner(folder=source)
    blueprint = Blueprint.of(learner.policy, torch.float32, bytes_max=4096)

    def turned(policy: ShardedPolicy, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        whole_ = turned_back(policy, tensors)
        return {name: whole_[name] for name in sorted(whole_)[1:]}

    monkeypatch.setattr("milepost.actors.trainer.fsdp.export.turned_back", turned)
    with pytest.raises(AssertionError, match=r"version 5 lacks \['model.layers.0.mlp.experts.0"):
        export_version(
            learner.policy, learner.group, blueprint, version=5, allocate=ordinary_memory
        )


def test_an_export_does_not_move_when_training_goes_on(make_learner: MakeLearner) -> None:
    """Buckets travel while the optimizer writes the weights they were made from."""
    learner = make_learner()
    weights = exported(learner)
    bytes_before = [bytes(bulk.data) for one in weights.buckets for bulk in one.tensors]
    learner.train(minibatches(0), 0)
    assert [bytes(bulk.data) for one in weights.buckets for bulk in one.tensors] == bytes_before
    assert exported(learner, version=1).digest != weights.digest


def test_buckets_hold_every_tensor_once_and_keep_their_size(
    make_learner: MakeLearner,
) -> None:
    learner = make_learner()
    tensors = export_tensors(learner.policy, learner.group, torch.float32)
    for bytes_max in (1, 2048, 1 << 30):
        weights = exported(learner, version=7, bytes_max=bytes_max)
        names = [name for bucket in weights.buckets for name in bucket.names]
        assert sorted(names) == [spec.name for spec in weights.tensors] == list(tensors)
        assert [bucket.index for bucket in weights.buckets] == list(range(len(weights.buckets)))
        assert {bucket.version for bucket in weights.buckets} == {7}
        sent: dict[str, bytes] = {}
        for bucket in weights.buckets:
            size = sum(bulk.nbytes for bulk in bucket.tensors)
            assert size <= bytes_max or len({unit_of(name) for name in bucket.names}) == 1
            for name, bulk in zip(bucket.names, bucket.tensors, strict=True):
                sent[name] = bytes(bulk.data)
                assert bulk.shape == tuple(tensors[name].shape)
        hashed = b"".join(name.encode() + sent[name] for name in sorted(sent))
        assert xxhash.xxh3_128_hexdigest(hashed) == weights.digest


def test_half_precision_versions_travel_as_bfloat16_bits(make_learner: MakeLearner) -> None:
    learner = make_learner(compute=torch.bfloat16)
    tensors = export_tensors(learner.policy, learner.group, torch.bfloat16)
    (bucket,) = exported(learner, bytes_max=1 << 30, dtype=torch.bfloat16).buckets
    name, bulk = bucket.names[0], bucket.tensors[0]
    assert bulk.dtype == "bfloat16"
    bits = torch.from_numpy(from_bulk(bulk).copy()).view(torch.bfloat16)
    assert torch.equal(bits, tensors[name])


@pytest.mark.parametrize("shard_bytes_max", [1 << 30, 4096])
def test_the_hugging_face_folder_loads_with_the_same_log_probs(
    shard_bytes_max: int, make_learner: MakeLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = make_learner()
    learner.train(minibatches(0), 0)
    folder = tmp_path / "hf"
    tensors = export_tensors(learner.policy, learner.group, torch.float32)
    write_hugging_face(folder, model_folder, tensors, shard_bytes_max=shard_bytes_max)
    assert (folder / "tokenizer.json").read_bytes() == b"{}"
    assert (folder / "chat_template.jinja").is_file()
    assert json.loads((folder / "config.json").read_text("utf-8"))["dtype"] == "float32"
    assert ((folder / "model.safetensors.index.json").exists()) == (shard_bytes_max == 4096)
    plain = model_classes("qwen3")[1].from_pretrained(folder, dtype=torch.float32)
    row = probe_rows(VOCABULARY)[0]
    ids = torch.from_numpy(row).long()[None]
    with torch.no_grad():
        every = plain(input_ids=ids).logits[0, :-1].log_softmax(-1)
    expected = every.gather(-1, ids[0, 1:, None])[:, 0]
    (scored,) = learner.score([row], 1.0)
    assert torch.allclose(torch.from_numpy(scored[1:]), expected, atol=2e-5)


def test_probes_are_the_same_in_every_process() -> None:
    """The canary compares versions, too: rows that changed would hide weights that did not."""
    one, other = probe_rows(VOCABULARY), probe_rows(VOCABULARY)
    assert [row.tolist() for row in one] == [row.tolist() for row in other]
    assert max(int(row.max()) for row in one) < VOCABULARY
