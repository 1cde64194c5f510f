"""Takes tensors out of the trainer's memory, where engine and trainer have one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from milepost.actors.engine.interface import CopyWeights, EpochError
from milepost.actors.weights.cuda_ipc.mappings import MappingRefused, Mappings
from milepost.actors.weights.cuda_ipc.runtime import CudaError, Runtime

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Copy: TypeAlias = "Callable[[tuple[str, ...], Sequence[Tensor]], object]"
"""Stages named tensors of the same device; returns when it reads them no longer."""


class Sharing:
    """The engine's end of CUDA IPC; `copy` and `close` are called by one thread.

    Args:
        runtime: of the GPU that holds the weights; None: this engine takes bytes only.
        why_not: said to people where there is none.

    Attributes:
        gpu: as of `EngineFacts`.
        details: for people.
    """

    def __init__(self, runtime: Runtime | None, why_not: str = "") -> None:
        self._mappings = None if runtime is None else Mappings(runtime)
        self.gpu = "" if runtime is None else runtime.uuid
        self.details: dict[str, object] = {"cuda_ipc": self.gpu or why_not}

    @classmethod
    def of(cls, device: torch.device) -> Sharing:
        """Of an engine on this device."""
        if device.type != "cuda":
            return cls(None, f"none, the weights are on {device.type}")
        from milepost.actors.weights.cuda_ipc.cudart import CudaRuntime

        try:
            return cls(CudaRuntime(device))
        except CudaError as error:
            return cls(None, f"none, {error}")

    def copy(self, work: CopyWeights, stage: Copy) -> None:
        """Stage tensors; returns when the trainer's memory is read no longer.

        Raises:
            EpochError: the memory cannot be read from here.
        """
        if self._mappings is None:
            raise EpochError(f"no handle can be opened: {self.details['cuda_ipc']}")
        try:
            sources = self._mappings.tensors(work.memory, work.specs, work.offsets)
        except (MappingRefused, CudaError) as error:
            raise EpochError(str(error)) from error
        stage(tuple(spec.name for spec in work.specs), sources)

    def close(self) -> None:
        """Give the trainer's memory back."""
        if self._mappings is not None:
            self._mappings.close()
