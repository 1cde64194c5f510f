"""CUDA's runtime, by the library that torch has loaded already: the same primary context.

Torch has functions of its own for this (`UntypedStorage._share_cuda_`); they are private, and hand
out parts of the caching allocator's blocks, whose lives it decides. Memory of one `cudaMalloc` each
has an offset of 0 and nobody else's tensors in it.

Reference: CUDA Runtime API, "Device Management" and "Memory Management".
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from milepost.actors.weights.cuda_ipc.runtime import HANDLE_BYTES, CudaError

if TYPE_CHECKING:
    from torch import Tensor

_LAZY_PEER_ACCESS: Final = 1
"""`cudaIpcMemLazyEnablePeerAccess`, the one flag there is."""
_LIBRARY: Final = "libcudart"


class _Handle(ctypes.Structure):
    """`cudaIpcMemHandle_t`: passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Memory:
    """What `torch.as_tensor` reads: the CUDA Array Interface, version 3."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class CudaRuntime:
    """`Runtime` of one GPU.

    Args:
        device: a CUDA device, with an index or as torch's current one.

    Raises:
        CudaError: torch has loaded no runtime that can be called.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda", device
        # Torch loads its libraries, and makes the primary context, when it is first used; what it
        # makes lies on one GPU, whatever the name leaves open.
        self._device = torch.empty(1, device=device).device
        self.uuid = uuid_of(self._device)
        self._library = _load()

    def allocate(self, num_bytes: int) -> int:
        """See `Runtime`."""
        address = ctypes.c_void_p()
        wanted = ctypes.byref(address), ctypes.c_size_t(num_bytes)
        try:
            self._call("cudaMalloc", *wanted)
        except CudaError:
            # Torch holds on to what it freed.
            torch.cuda.empty_cache()
            self._call("cudaMalloc", *wanted)
        assert address.value, f"cudaMalloc of {num_bytes} bytes gave no address"
        return address.value

    def handle(self, address: int) -> bytes:
        """See `Runtime`."""
        found = _Handle()
        self._call("cudaIpcGetMemHandle", ctypes.byref(found), ctypes.c_void_p(address))
        return bytes(found)

    def open(self, handle: bytes) -> int:
        """See `Runtime`."""
        address = ctypes.c_void_p()
        self._call(
            "cudaIpcOpenMemHandle",
            ctypes.byref(address),
            _Handle.from_buffer_copy(handle),
            ctypes.c_uint(_LAZY_PEER_ACCESS),
        )
        assert address.value, "cudaIpcOpenMemHandle gave no address"
        return address.value

    def close(self, address: int) -> None:
        """See `Runtime`."""
        self._call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))

    def view(self, address: int, num_bytes: int) -> Tensor:
        """See `Runtime`."""
        tensor = torch.as_tensor(_Memory(address, num_bytes), device=self._device)
        assert tensor.data_ptr() == address, "torch copied what it should have wrapped"
        return tensor

    def synchronize(self) -> None:
        """See `Runtime`."""
        try:
            torch.cuda.current_stream(self._device).synchronize()
        except RuntimeError as error:
            raise CudaError(f"work on GPU {self.uuid} failed: {error}") from error

    def _call(self, name: str, *arguments: Any) -> None:
        # The current device is one of the thread's, and threads come and go.
        for call, given in (("cudaSetDevice", (self._device.index,)), (name, arguments)):
            if code := getattr(self._library, call)(*given):
                # The error is sticky until it is read, and torch must not find it in its next call.
                self._library.cudaGetLastError()
                said = self._library.cudaGetErrorString(code).decode()
                raise CudaError(f"{call} on GPU {self.uuid} failed: {said} (cudaError {code})")


def uuid_of(device: torch.device) -> str:
    """Of the GPU that this process knows under that name."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _load() -> ctypes.CDLL:
    path = _loaded(Path("/proc/self/maps").read_text(encoding="utf-8"))
    if not path:
        raise CudaError(
            f"torch {torch.__version__} has loaded no {_LIBRARY} of its own, so memory cannot be "
            f'shared by handle; set actors.publisher.cuda_ipc = "never"'
        )
    library = ctypes.CDLL(path)
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _loaded(maps: str) -> str:
    """Path of the runtime among the files mapped into this process; empty when there is none."""
    for line in maps.splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith(_LIBRARY):
            return f"/{path}"
    return ""
