"""Versions exported within the trainer's GPU, for engines there that copy them by a handle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import xxhash

from milepost.actors.trainer.fsdp.blueprint import turned_back
from milepost.actors.trainer.fsdp.export import Weights, gathered, tensor_bulk
from milepost.actors.trainer.fsdp.shard import ShardedPolicy
from milepost.actors.weights.bucketing import buckets_of
from milepost.actors.weights.cuda_ipc.layout import Layout, num_bytes_of
from milepost.actors.weights.cuda_ipc.reading import HostReader, SideStream
from milepost.actors.weights.cuda_ipc.slots import Slot, Slots
from milepost.messages.engine import TensorSpec
from milepost.messages.publisher import BucketReady

if TYPE_CHECKING:
    from torch import Tensor

    from milepost.actors.weights.cuda_ipc.runtime import Runtime
    from milepost.messages.engine import DeviceMemory


class NotHeld(RuntimeError):
    """The memory of a version was given to a newer one."""


class DeviceExporter:
    """Rank 0's versions on its GPU. `export` belongs to one thread, `read_back` to another.

    Args:
        runtime: of the rank's GPU.
        device: the same, as torch knows it.
        dtype: of exported tensors.
        bytes_max: of a bucket.
    """

    def __init__(
        self, runtime: Runtime, device: torch.device, dtype: torch.dtype, *, bytes_max: int
    ) -> None:
        self._runtime, self._dtype, self._bytes_max = runtime, dtype, bytes_max
        self._slots = Slots(runtime)
        self._layout: Layout | None = None
        self._buckets: list[list[str]] = []
        self._plain: set[str] = set()
        """Parameters that checkpoints have as they are: each has its place before it is there."""
        self._digests, self._back = HostReader(device), HostReader(device)
        self._side = SideStream(device)

    @property
    def gpu(self) -> str:
        """UUID of the GPU."""
        return self._runtime.uuid

    def export(self, policy: ShardedPolicy, version: int) -> tuple[Weights, DeviceMemory]:
        """Lay a version out on the GPU; collective, the other ranks go through `gathered`.

        Returns when every byte is where it belongs: who is told the handle may read.

        Raises:
            CudaError: no room for one more version, or the GPU failed.
        """
        with torch.no_grad():
            slot, layout = self._filled(policy, version)
        self._runtime.synchronize()
        digest, each = self._read_digests(slot, layout)
        buckets = tuple(
            BucketReady(
                version=version,
                index=index,
                names=tuple(names),
                tensors=(),
                offsets=tuple(layout.offsets[name] for name in names),
            )
            for index, names in enumerate(self._buckets)
        )
        return Weights(tuple(layout.specs.values()), buckets, digest, each), slot.memory

    def read_back(self, version: int) -> tuple[BucketReady, ...]:
        """The buckets of a version with their bytes, for engines that take nothing else.

        Raises:
            NotHeld: its memory was given to a newer one.
        """
        slot, layout = self._slots.find(version), self._layout
        if slot is None or layout is None:
            held = ", ".join(str(one) for one in self._slots.held)
            raise NotHeld(f"version {version} is not on the GPU, there are {held or 'none'}")
        with self._side.entered():
            return tuple(
                BucketReady(
                    version=version,
                    index=index,
                    names=tuple(names),
                    tensors=tuple(tensor_bulk(self._on_host(slot, layout, name)) for name in names),
                    offsets=tuple(layout.offsets[name] for name in names),
                )
                for index, names in enumerate(self._buckets)
            )

    def keep(self, versions: tuple[int, ...], *, announced: int) -> None:
        """As of `Slots`."""
        self._slots.keep(versions, announced=announced)

    # ---- filling -------------------------------------------------------------------------

    def _filled(self, policy: ShardedPolicy, version: int) -> tuple[Slot, Layout]:
        """A parameter that checkpoints have as it is goes to its place as it is gathered.

        Others (fused experts), and the whole first version, are turned back in memory of their own.
        """
        known = self._layout
        rest: dict[str, Tensor] = {}
        slot = self._slots.take(version, known.num_bytes) if known else None
        missing: set[str] = set(known.specs) if known else set()
        for name, full in gathered(policy):
            if slot is not None and name in self._plain:
                _place(slot, known, name).copy_(full)
                missing.discard(name)
            else:
                rest[name] = full.to(self._dtype)
        turned = turned_back(policy, rest) if rest else {}
        if known is None or slot is None:
            known = self._layout = self._laid_out(turned)
            self._plain = {name for name in turned if _is_same(turned[name], rest.get(name))}
            slot, missing = self._slots.take(version, known.num_bytes), set(known.specs)
        for name, tensor in turned.items():
            _place(slot, known, name).copy_(tensor)
            missing.discard(name)
        assert not missing, f"version {version} lacks {sorted(missing)[:3]}"
        return slot, known

    def _laid_out(self, tensors: dict[str, Tensor]) -> Layout:
        layout = Layout.of(
            TensorSpec(
                name=name,
                dtype=str(self._dtype).removeprefix("torch."),
                shape=tuple(tensors[name].shape),
            )
            for name in sorted(tensors)
        )
        sizes = {name: num_bytes_of(spec) for name, spec in layout.specs.items()}
        self._buckets = buckets_of(sizes, bytes_max=self._bytes_max)
        return layout

    # ---- reading -------------------------------------------------------------------------

    def _read_digests(self, slot: Slot, layout: Layout) -> tuple[str, tuple[str, ...]]:
        """Of all and of each, over what the host reads back of the memory that engines copy.

        The memory is read from one end to the other: a model of many small tensors costs no more
        than one of a few large ones.
        """
        of_all, each = xxhash.xxh3_128(), []
        read = self._digests.pieces([slot.view[: layout.num_bytes]])
        pieces = _Pieces(piece for _, piece in read)
        for name, spec in layout.specs.items():
            of_all.update(name.encode())
            of_one = xxhash.xxh3_128()
            for part in pieces.span(layout.offsets[name], num_bytes_of(spec)):
                of_all.update(part)
                of_one.update(part)
            each.append(of_one.hexdigest())
        return of_all.hexdigest(), tuple(each)

    def _on_host(self, slot: Slot, layout: Layout, name: str) -> Tensor:
        spec = layout.specs[name]
        room = torch.empty(num_bytes_of(spec), dtype=torch.uint8)
        start, to = layout.offsets[name], room.numpy().data
        end = 0
        for _, piece in self._back.pieces([slot.view[start : start + len(to)]]):
            to[end : end + len(piece)] = piece
            end += len(piece)
        return room.view(self._dtype).view(spec.shape)


class _Pieces:
    """Bytes that come in pieces, asked for by where they lie, from the first to the last."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._start = 0

    def span(self, start: int, num_bytes: int) -> Iterator[memoryview]:
        """These bytes; a part may be read until the next one is asked for."""
        assert start >= self._start, (start, self._start)
        end = start + num_bytes
        while start < end:
            if start >= self._start + len(self._piece):
                self._start += len(self._piece)
                self._piece = next(self._pieces)
                continue
            part = self._piece[start - self._start : end - self._start]
            yield part
            start += len(part)


def _is_same(turned: Tensor, found: Tensor | None) -> bool:
    return found is not None and (turned.data_ptr(), turned.shape) == (
        found.data_ptr(),
        found.shape,
    )


def _place(slot: Slot, layout: Layout | None, name: str) -> Tensor:
    """Where a tensor of the version lies, with its dtype and shape."""
    assert layout is not None
    spec, start = layout.specs[name], layout.offsets[name]
    flat = slot.view[start : start + num_bytes_of(spec)]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return flat.view(dtype).view(spec.shape)
