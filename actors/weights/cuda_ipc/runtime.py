"""What is asked of CUDA: memory that two processes of one GPU share. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from torch import Tensor

HANDLE_BYTES: Final = 64
"""Size of `cudaIpcMemHandle_t`."""


class CudaError(RuntimeError):
    """A call failed; the text has the call, its numbers and what the driver says."""


class Runtime(Protocol):
    """The calls, for one GPU. Any thread may make them.

    Attributes:
        uuid: of the GPU, the same in every process that sees it.
    """

    uuid: str

    def allocate(self, num_bytes: int) -> int:
        """Address of new memory, an allocation of its own, which lives as long as the process.

        It is never freed on purpose: to free what another process has open is undefined, and the
        end of a process gives everything back.

        Raises:
            CudaError: there is not so much.
        """
        ...

    def handle(self, address: int) -> bytes:
        """The handle of an allocation, `HANDLE_BYTES`.

        Raises:
            CudaError: this GPU, driver or container shares no memory.
        """
        ...

    def open(self, handle: bytes) -> int:
        """Address, in this process, of memory that another process allocated.

        It stays valid until closed, whatever becomes of that process.

        Raises:
            CudaError: the other process is gone, is this one, or is out of reach.
        """
        ...

    def close(self, address: int) -> None:
        """Give back what was opened.

        Raises:
            CudaError: it is not open.
        """
        ...

    def view(self, address: int, num_bytes: int) -> Tensor:
        """Memory as a tensor, uint8 [num_bytes], without a copy; it owns nothing."""
        ...

    def synchronize(self) -> None:
        """Return when everything that this thread has ordered on the GPU is done.

        Raises:
            CudaError: something of it failed.
        """
        ...
