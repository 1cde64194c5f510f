"""The engine's end: memory of the trainer's, opened once and read for every version after."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from milepost.actors.weights.cuda_ipc.layout import num_bytes_of, outside
from milepost.actors.weights.cuda_ipc.runtime import HANDLE_BYTES, CudaError, Runtime
from milepost.messages.engine import DeviceMemory, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

OPEN_MAX: Final = 4
"""Allocations kept open. A trainer goes round between two or three; of an older trainer, memory
lives on while it is open here."""


class MappingRefused(RuntimeError):
    """The memory cannot be read from here; the text says why."""


class Mappings:
    """Opened handles of one engine. Used by one thread.

    Args:
        runtime: of the GPU that holds the engine's weights.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: OrderedDict[bytes, tuple[int, Tensor]] = OrderedDict()

    @property
    def num_open(self) -> int:
        """Allocations that are open now."""
        return len(self._open)

    def tensors(
        self, memory: DeviceMemory, specs: Sequence[TensorSpec], offsets: Sequence[int]
    ) -> list[Tensor]:
        """Bytes of each tensor where they lie: uint8, one dimension, no copy.

        They may be read until the next call; the sender promises that they hold still until the
        message that named them is answered.

        Raises:
            MappingRefused: memory of another GPU, a handle that cannot be opened, or a tensor that
                would lie outside.
        """
        if len(offsets) != len(specs):
            raise MappingRefused(f"{len(offsets)} offsets for {len(specs)} tensors")
        if memory.device != self._runtime.uuid:
            raise MappingRefused(
                f"the version lies on GPU {memory.device}, this engine computes on "
                f"{self._runtime.uuid}"
            )
        for spec, offset in zip(specs, offsets, strict=True):
            if fault := outside(spec, offset, memory.num_bytes):
                raise MappingRefused(fault)
        view = self._view(memory)
        return [
            view[offset : offset + num_bytes_of(spec)]
            for spec, offset in zip(specs, offsets, strict=True)
        ]

    def close(self) -> None:
        """Give everything back; nothing may be reading any more.

        Raises:
            CudaError: the driver refuses.
        """
        while self._open:
            self._displace()

    def _view(self, memory: DeviceMemory) -> Tensor:
        known = self._open.get(memory.handle)
        if known is not None:
            self._open.move_to_end(memory.handle)
            return known[1]
        if len(memory.handle) != HANDLE_BYTES:
            raise MappingRefused(f"a handle has {HANDLE_BYTES} bytes, not {len(memory.handle)}")
        if len(self._open) >= OPEN_MAX:
            self._displace()
        try:
            address = self._runtime.open(memory.handle)
        except CudaError as error:
            raise MappingRefused(f"the trainer's memory cannot be opened: {error}") from error
        view = self._runtime.view(address, memory.num_bytes)
        self._open[memory.handle] = (address, view)
        return view

    def _displace(self) -> None:
        _, (address, _) = self._open.popitem(last=False)
        self._runtime.close(address)
