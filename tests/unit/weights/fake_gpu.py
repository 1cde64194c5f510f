"""A GPU on the CPU: memory with addresses and handles, seen by several processes.

As the driver does it, memory lives until the process that allocated it is gone and nobody has it
open; what is wrong for CUDA is an error or an assertion here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from milepost.actors.weights.cuda_ipc.runtime import HANDLE_BYTES, CudaError

UUID = "GPU-0"


@dataclass
class Allocation:
    """One piece of memory.

    Attributes:
        owner: process that allocated it; None once that is dead.
        opened: processes that have it open.
    """

    data: Tensor
    owner: str | None
    opened: list[str] = field(default_factory=list)


@dataclass
class Gpu:
    """What all processes see.

    Attributes:
        room_bytes: of all allocations together.
    """

    room_bytes: int = 1 << 30
    allocations: dict[int, Allocation] = field(default_factory=dict)

    def kill(self, process: str) -> None:
        """The process is gone, whatever it was doing."""
        for address, allocation in list(self.allocations.items()):
            if allocation.owner == process:
                allocation.owner = None
            allocation.opened = [name for name in allocation.opened if name != process]
            self._forget(address)

    def _forget(self, address: int) -> None:
        allocation = self.allocations[address]
        if allocation.owner is None and not allocation.opened:
            del self.allocations[address]

    @property
    def used_bytes(self) -> int:
        return sum(one.data.numel() for one in self.allocations.values())


@dataclass
class FakeRuntime:
    """`Runtime` of one process.

    Attributes:
        refuses: text of the error that every opening meets; empty: none does.
    """

    gpu: Gpu
    process: str
    refuses: str = ""
    num_opened: int = 0
    uuid: str = UUID

    def allocate(self, num_bytes: int) -> int:
        if self.gpu.used_bytes + num_bytes > self.gpu.room_bytes:
            raise CudaError(f"cudaMalloc of {num_bytes} bytes: out of memory")
        address = 1 + max(self.gpu.allocations, default=0)
        data = torch.full((num_bytes,), 0xAB, dtype=torch.uint8)
        self.gpu.allocations[address] = Allocation(data, self.process)
        return address

    def handle(self, address: int) -> bytes:
        assert self.gpu.allocations[address].owner == self.process, "a handle of others' memory"
        return address.to_bytes(HANDLE_BYTES, "little")

    def open(self, handle: bytes) -> int:
        address = int.from_bytes(handle, "little")
        allocation = self.gpu.allocations.get(address)
        if self.refuses or allocation is None or allocation.owner in {None, self.process}:
            raise CudaError(f"cudaIpcOpenMemHandle: {self.refuses or 'invalid argument'}")
        allocation.opened.append(self.process)
        self.num_opened += 1
        return address

    def close(self, address: int) -> None:
        self.gpu.allocations[address].opened.remove(self.process)
        self.gpu._forget(address)

    def view(self, address: int, num_bytes: int) -> Tensor:
        allocation = self.gpu.allocations[address]
        assert self.process in {allocation.owner, *allocation.opened}, "neither ours nor opened"
        return allocation.data[:num_bytes]

    def synchronize(self) -> None:
        """Everything is done at once here."""
