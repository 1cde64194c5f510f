"""Memory that two processes share: who writes when, who has it open, what either's death leaves."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from unit.weights.fake_gpu import FakeRuntime, Gpu

from milepost.actors.weights.cuda_ipc.cudart import _loaded
from milepost.actors.weights.cuda_ipc.layout import ALIGNMENT, Layout, num_bytes_of, outside
from milepost.actors.weights.cuda_ipc.mappings import OPEN_MAX, MappingRefused, Mappings
from milepost.actors.weights.cuda_ipc.reading import HostReader
from milepost.actors.weights.cuda_ipc.runtime import HANDLE_BYTES, CudaError
from milepost.actors.weights.cuda_ipc.slots import Slots
from milepost.messages.engine import DeviceMemory, TensorSpec

SPECS = (
    TensorSpec(name="a", dtype="float32", shape=(3, 5)),
    TensorSpec(name="b", dtype="bfloat16", shape=(7,)),
    TensorSpec(name="c", dtype="float32", shape=()),
)


@given(st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=8))
def test_tensors_lie_apart_and_on_vector_bounds(shapes: list[list[int]]) -> None:
    specs = [
        TensorSpec(name=str(at), dtype="bfloat16", shape=tuple(shape))
        for at, shape in enumerate(shapes)
    ]
    layout = Layout.of(specs)
    end = 0
    for spec in specs:
        offset = layout.offsets[spec.name]
        assert offset % ALIGNMENT == 0
        assert offset >= end
        end = offset + num_bytes_of(spec)
        assert outside(spec, offset, layout.num_bytes) == ""
    assert layout.num_bytes >= max(end, 1)


def test_two_allocations_do_for_any_number_of_versions() -> None:
    """One is served and may be read by an engine that starts again, one takes the next version."""
    gpu = Gpu()
    slots = Slots(FakeRuntime(gpu, "trainer"))
    for version in range(20):
        served = slots.find(version - 1)
        slot = slots.take(version, 64)
        assert slot is not served, "the next version lies where the served one is"
        slots.keep((version,), announced=version)
        assert slots.held == (version,)
    assert slots.num_slots == 2
    assert gpu.used_bytes == 2 * 64


@given(st.data())
def test_no_memory_is_written_that_may_be_read(data: st.DataObject) -> None:
    """Whatever is kept, in whatever order: what is needed, or was never heard of, stays."""
    slots = Slots(FakeRuntime(Gpu(), "trainer"))
    readable: dict[int, object] = {}
    exported: list[int] = []
    for _ in range(data.draw(st.integers(1, 30))):
        if not exported or data.draw(st.booleans()):
            version = exported[-1] + 1 if exported else 0
            slot = slots.take(version, 16)
            assert slot not in readable.values()
            readable[version] = slot
            exported.append(version)
        else:
            announced = data.draw(st.sampled_from(exported))
            kept = data.draw(st.sets(st.sampled_from(exported)))
            slots.keep(kept, announced=announced)
            for version in [at for at in readable if at <= announced and at not in kept]:
                del readable[version]
        assert {version: slots.find(version) for version in readable} == readable


def test_a_version_exported_twice_is_read_where_it_was_written_last() -> None:
    slots = Slots(FakeRuntime(Gpu(), "trainer"))
    first, second = slots.take(3, 16), slots.take(3, 16)
    assert first is not second
    assert slots.find(3) is second
    slots.keep((), announced=3)
    assert slots.find(3) is None
    assert slots.num_slots == 2


def test_memory_that_does_not_fit_is_refused_by_the_driver() -> None:
    slots = Slots(FakeRuntime(Gpu(room_bytes=100), "trainer"))
    slots.take(0, 64)
    with pytest.raises(CudaError, match="64 bytes: out of memory"):
        slots.take(1, 64)
    assert slots.held == (0,)


class Pair:
    """A trainer and an engine on one GPU."""

    def __init__(self) -> None:
        self.gpu = Gpu()
        self.slots = Slots(FakeRuntime(self.gpu, "trainer"))
        self.runtime = FakeRuntime(self.gpu, "engine")
        self.mappings = Mappings(self.runtime)
        self.layout = Layout.of(SPECS)
        self.offsets = tuple(self.layout.offsets.values())

    def export(self, version: int) -> DeviceMemory:
        slot = self.slots.take(version, self.layout.num_bytes)
        slot.view.fill_(version)
        return slot.memory

    def read(self, memory: DeviceMemory) -> set[int]:
        found = self.mappings.tensors(memory, SPECS, self.offsets)
        assert [tensor.numel() for tensor in found] == [num_bytes_of(spec) for spec in SPECS]
        return {int(value) for tensor in found for value in tensor}


def test_memory_is_opened_once_for_all_versions_that_lie_there() -> None:
    pair = Pair()
    for version in range(6):
        assert pair.read(pair.export(version)) == {version}
        pair.slots.keep((version,), announced=version)
    assert pair.runtime.num_opened == 2
    pair.mappings.close()
    assert pair.mappings.num_open == 0
    assert all(not one.opened for one in pair.gpu.allocations.values())


def test_what_has_not_been_read_for_long_is_closed() -> None:
    """Memory of a trainer that is gone must not stay for as long as the engine lives."""
    pair = Pair()
    memories = [pair.export(version) for version in range(OPEN_MAX + 1)]
    for version, memory in enumerate(memories):
        assert pair.read(memory) == {version}
    assert pair.mappings.num_open == OPEN_MAX
    opened = [bool(one.opened) for one in pair.gpu.allocations.values()]
    assert opened == [False] + [True] * OPEN_MAX
    assert pair.read(memories[0]) == {0}


def test_a_dead_trainers_memory_is_read_until_it_is_closed_and_then_gone() -> None:
    pair = Pair()
    memory, unread = pair.export(7), pair.export(8)
    assert pair.read(memory) == {7}
    pair.gpu.kill("trainer")
    assert pair.read(memory) == {7}
    with pytest.raises(MappingRefused, match="cannot be opened: cudaIpcOpenMemHandle"):
        pair.read(unread)
    pair.mappings.close()
    assert pair.gpu.used_bytes == 0


def test_a_dead_engine_leaves_nothing_open() -> None:
    pair = Pair()
    assert pair.read(pair.export(1)) == {1}
    pair.gpu.kill("engine")
    assert all(not one.opened for one in pair.gpu.allocations.values())
    other = Mappings(FakeRuntime(pair.gpu, "engine again"))
    slot = pair.slots.find(1)
    assert slot is not None
    assert int(other.tensors(slot.memory, SPECS, pair.offsets)[0][0]) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "GPU-9"}, "the version lies on GPU GPU-9, this engine computes on GPU-0"),
        ({"handle": b"short"}, "a handle has 64 bytes, not 5"),
        ({"handle": bytes(HANDLE_BYTES)}, "cannot be opened: cudaIpcOpenMemHandle: invalid"),
        ({"num_bytes": 260}, "b ends at byte 270, the memory has 260"),
    ],
)
def test_memory_that_cannot_be_read_is_refused_by_name(
    changes: dict[str, object], reason: str
) -> None:
    """Nothing is opened for a tensor that lies outside: reading there would end the process."""
    pair = Pair()
    memory = pair.export(0)
    with pytest.raises(MappingRefused, match=reason):
        pair.read(msgspec.structs.replace(memory, **changes))
    assert pair.mappings.num_open == 0


def test_offsets_are_one_for_each_tensor_and_on_its_bounds() -> None:
    pair = Pair()
    memory = pair.export(0)
    with pytest.raises(MappingRefused, match="2 offsets for 3 tensors"):
        pair.mappings.tensors(memory, SPECS, pair.offsets[:2])
    with pytest.raises(MappingRefused, match="begins at byte 2, in the middle of a float32"):
        pair.mappings.tensors(memory, SPECS[:1], (2,))


@pytest.mark.parametrize("copies", [False, True])
@given(sizes=st.lists(st.integers(0, 20), max_size=12), piece_bytes=st.integers(1, 24))
def test_pieces_are_all_bytes_of_every_tensor_in_order(
    *, copies: bool, sizes: list[int], piece_bytes: int
) -> None:
    """Whatever fits a room: a tensor over several, several in one, none of an empty one."""
    sources = [torch.arange(at, at + size, dtype=torch.uint8) for at, size in enumerate(sizes)]
    reader = HostReader(torch.device("cpu"), piece_bytes=piece_bytes, copies=copies)
    for _ in range(2):
        found = [b""] * len(sizes)
        order = []
        for index, piece in reader.pieces(iter(sources)):
            assert 0 < len(piece) <= piece_bytes
            found[index] += bytes(piece)
            order.append(index)
        assert found == [source.numpy().tobytes() for source in sources]
        assert order == sorted(order)


def test_the_runtime_is_the_one_that_is_mapped_already() -> None:
    """Two versions of it in one process have two ideas of what is current."""
    maps = (
        "7f00-7f01 r-xp 00000000 00:00 1  /usr/lib/libc.so.6\n"
        "7f02-7f03 r-xp 00000000 00:00 2  /opt/my env/nvidia/lib/libcudart.so.13\n"
        "7f04-7f05 rw-p 00000000 00:00 0\n"
    )
    assert _loaded(maps) == "/opt/my env/nvidia/lib/libcudart.so.13"
    assert _loaded("7f04-7f05 rw-p 00000000 00:00 0\n") == ""
