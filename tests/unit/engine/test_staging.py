"""Staged weights: beside the serving ones, proven by digest, exchanged or forgotten whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from unit.engine.kit import (
    Weights,
    digest_of,
    generate,
    manifest,
    order,
    publish,
    random_row,
    random_weights,
    score,
    serving,
    tiny_shape,
)
from unit.weights.fake_gpu import FakeRuntime, Gpu

from milepost.actors.arrays import to_bulk
from milepost.actors.engine.embedded.engine import EmbeddedEngine
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import ModelShape
from milepost.actors.engine.interface import CopyWeights, EpochError
from milepost.actors.engine.sharing import Sharing
from milepost.actors.weights.cuda_ipc.layout import Layout
from milepost.actors.weights.cuda_ipc.reading import HostReader
from milepost.actors.weights.cuda_ipc.slots import Slots
from milepost.messages.engine import DeviceMemory, PauseMode

SHAPE = tiny_shape()
MOE = tiny_shape(
    model_type="qwen3_moe", num_experts=3, num_experts_per_tok=1, moe_intermediate_size=8
)


def stage(engine: EmbeddedEngine, weights: Weights, names: list[str] | None = None) -> None:
    """Open an epoch and write some of it, one tensor at a time, in the order of `names`."""
    engine.staging.open(manifest(SHAPE))
    for name in names if names is not None else list(weights):
        engine.staging.write((name,), (to_bulk(weights[name]),))


@pytest.mark.parametrize("shape", [SHAPE, MOE], ids=["dense", "moe"])
def test_every_named_tensor_reads_back_as_it_was_written(shape: object) -> None:
    """Fused tensors hold each name once: no window overlaps another, none is left out."""
    chosen = SHAPE if shape is SHAPE else MOE
    parameters = Parameters(chosen, torch.float32, torch.device("cpu"))
    weights = random_weights(chosen, 3)
    for name, values in weights.items():
        parameters.write(name, values)
    for name, values in weights.items():
        assert np.array_equal(parameters.read(name), values), name
    assert {spec.name: spec.shape for spec in parameters.manifest} == {
        name: values.shape for name, values in weights.items()
    }


def test_the_serving_weights_do_not_move_while_others_come_in() -> None:
    """Half a version in memory must not be seen by a single token."""
    engine = serving(SHAPE, seed=0)
    row = random_row(0, 20)
    before = score(engine, row).logprobs[0]
    weights = random_weights(SHAPE, 1)
    stage(engine, weights, list(weights)[:-1])
    assert np.array_equal(score(engine, row).logprobs[0], before)
    engine.staging.drop()
    assert np.array_equal(score(engine, row).logprobs[0], before)
    publish(engine, weights, 1)
    assert np.abs(score(engine, row).logprobs[0] - before).max() > 0.1


def test_the_digest_is_over_names_and_bytes_in_the_announced_order() -> None:
    """Tensors may come in any order; the digest has one."""
    engine = serving(SHAPE, seed=0)
    weights = random_weights(SHAPE, 1)
    stage(engine, weights, list(reversed(weights)))
    engine.staging.check(digest_of(weights))
    with pytest.raises(EpochError, match="the epoch says 00"):
        engine.staging.check("00")


@pytest.mark.parametrize("fault", ["one_bit", "swapped_layers", "same_names_other_order"])
def test_a_version_that_arrived_wrong_is_found(fault: str) -> None:
    """A lying transport, layers exchanged, names exchanged: all have another digest."""
    engine = serving(SHAPE, seed=0)
    weights = random_weights(SHAPE, 1)
    true = digest_of(weights)
    first, second = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    match fault:
        case "one_bit":
            weights[first].view(np.uint32)[0, 0] ^= 1
        case "swapped_layers":
            weights[first], weights[second] = weights[second], weights[first]
        case _:
            # The layers have the same bytes here: only the names can tell them apart.
            weights[second] = weights[first]
            true = digest_of({**weights, first + "x": weights[first]})
    stage(engine, weights)
    with pytest.raises(EpochError, match="staged weights have digest"):
        engine.staging.check(true)


def test_a_part_of_a_version_is_never_right() -> None:
    """Missing tensors are named before any digest is compared."""
    engine = serving(SHAPE, seed=0)
    weights = random_weights(SHAPE, 1)
    stage(engine, weights, [name for name in weights if name != "model.norm.weight"])
    with pytest.raises(EpochError, match=r"1 tensors never came: model\.norm\.weight"):
        engine.staging.check(digest_of(weights))
    with pytest.raises(AssertionError, match="switch with 1 tensors missing"):
        engine.staging.switch()


def test_a_tensor_twice_or_without_an_epoch_is_refused() -> None:
    """The state machine refuses these first; the copy itself refuses them again."""
    engine = serving(SHAPE, seed=0)
    norm = (to_bulk(random_weights(SHAPE, 1)["model.norm.weight"]),)
    with pytest.raises(EpochError, match="no epoch is open"):
        engine.staging.write(("model.norm.weight",), norm)
    with pytest.raises(EpochError, match="no epoch is open"):
        engine.staging.check("")
    engine.staging.open(manifest(SHAPE))
    engine.staging.write(("model.norm.weight",), norm)
    with pytest.raises(EpochError, match="came twice"):
        engine.staging.write(("model.norm.weight",), norm)


def test_two_sets_of_weights_are_enough_for_any_number_of_versions() -> None:
    """A long run must not grow with its versions."""
    engine = serving(SHAPE, seed=0)
    sets = set()
    for version in range(1, 9):
        stage(engine, random_weights(SHAPE, version))
        if version % 3 == 0:
            engine.staging.drop()
            continue
        engine.switch(version, PauseMode.RETRACT)
        sets.add(id(engine.staging.serving))
        fresh = serving(SHAPE, seed=version)
        asked = order("a", random_row(version, 9), tokens_max=4, seed=version)
        reply = generate(engine, asked)["a"]
        assert np.array_equal(reply.logprobs, generate(fresh, asked)["a"].logprobs)
    assert len(sets) == 2


def laid_out(slots: Slots, shape: ModelShape, weights: Weights) -> tuple[DeviceMemory, Layout]:
    """A version on the trainer's GPU."""
    layout = Layout.of(manifest(shape))
    slot = slots.take(1, layout.num_bytes)
    for name, values in weights.items():
        start = layout.offsets[name]
        flat = torch.from_numpy(values.copy()).reshape(-1).view(torch.uint8)
        slot.view[start : start + flat.numel()] = flat
    return slot.memory, layout


@pytest.mark.parametrize("shape", [SHAPE, MOE], ids=["dense", "moe"])
def test_a_version_copied_within_the_gpu_is_proven_like_one_that_travelled(
    shape: ModelShape,
) -> None:
    """Fused windows, spread norms and experts; in buckets whose order is not the digest's."""
    engine, gpu = serving(shape, seed=0), Gpu()
    weights = random_weights(shape, 1)
    memory, layout = laid_out(Slots(FakeRuntime(gpu, "trainer")), shape, weights)
    sharing = Sharing(FakeRuntime(gpu, "engine"))
    assert sharing.gpu == memory.device
    engine.staging._reader = HostReader(torch.device("cpu"), piece_bytes=100, copies=True)
    engine.staging.open(manifest(shape), randomize=True)
    names = list(reversed(weights))
    for part in (names[::2], names[1::2]):
        specs = tuple(layout.specs[name] for name in part)
        offsets = tuple(layout.offsets[name] for name in part)
        sharing.copy(CopyWeights("k", specs, offsets, memory), engine.staging.copy)
    gpu.kill("trainer")
    sharing.close()
    assert gpu.used_bytes == 0, "nothing of the trainer's is needed any more"
    engine.staging.check(digest_of(weights))
    engine.switch(1, PauseMode.RETRACT)
    expected = serving(shape, seed=1)
    assert engine.staging.digests(tuple(weights)) == expected.staging.digests(tuple(weights))


def test_what_is_wrong_with_a_copy_is_an_error_of_the_epoch() -> None:
    """Torn bytes are another digest; memory out of reach, and a second copy, have names."""
    engine, gpu = serving(SHAPE, seed=0), Gpu()
    weights = random_weights(SHAPE, 1)
    slots = Slots(FakeRuntime(gpu, "trainer"))
    memory, layout = laid_out(slots, SHAPE, weights)
    specs, offsets = tuple(layout.specs.values()), tuple(layout.offsets.values())
    work = CopyWeights("k", specs, offsets, memory)
    blind = Sharing(FakeRuntime(gpu, "engine", refuses="not permitted"))
    with pytest.raises(EpochError, match="cannot be opened: cudaIpcOpenMemHandle: not permitted"):
        blind.copy(work, engine.staging.copy)
    with pytest.raises(EpochError, match="no handle can be opened: none, the weights are on cpu"):
        Sharing.of(torch.device("cpu")).copy(work, engine.staging.copy)
    sharing = Sharing(FakeRuntime(gpu, "engine"))
    with pytest.raises(EpochError, match="no epoch is open"):
        sharing.copy(work, engine.staging.copy)
    engine.staging.open(manifest(SHAPE))
    slot = slots.find(1)
    assert slot is not None
    slot.view[5] ^= 1
    sharing.copy(work, engine.staging.copy)
    with pytest.raises(EpochError, match="came twice"):
        sharing.copy(work, engine.staging.copy)
    with pytest.raises(EpochError, match="staged weights have digest"):
        engine.staging.check(digest_of(weights))
