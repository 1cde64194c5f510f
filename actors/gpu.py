"""What the driver says of an actor's GPUs, asked on a thread of its own: drivers can hang.

Figures are those of whole devices. Which process has how much cannot be told from inside a
container, where the driver names processes by numbers of another namespace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from milepost.configs.sglang import num_gpus

if TYPE_CHECKING:
    from milepost.configs.spec import ActorSpec

READ_S: Final = 1.0
MIB: Final = 1 << 20


class Driver(Protocol):
    """The part of NVML that is used; `pynvml` is one."""

    def nvmlInit(self) -> None: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...  # noqa: D102, N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: D102, N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: D102, N802


def ordinals_of(spec: ActorSpec) -> tuple[int, ...]:
    """CUDA ordinals that this actor computes on; a plain `cuda` of a rank is its own number."""
    actors = spec.topology.actors
    if spec.kind == "trainer" and actors.trainer is not None:
        kind, _, number = actors.trainer.device.partition(":")
        return (int(number) if number else spec.index,) if kind == "cuda" else ()
    if spec.kind == "engine" and actors.engine is not None:
        kind, _, number = actors.engine.device.partition(":")
        if kind != "cuda" or actors.engine.sglang.urls:
            return ()
        is_server = actors.engine.kind == "sglang"
        stride = actors.engine.sglang.gpu_stride if is_server else 0
        count = num_gpus(actors.engine.sglang.options) if is_server else 1
        first = int(number or 0) + spec.index * stride
        return tuple(range(first, first + count))
    return ()


class GpuFigures:
    """The newest figures of some GPUs.

    Args:
        ordinals: as CUDA numbers them, within `visible`.
        visible: CUDA_VISIBLE_DEVICES; None when it is not set.
        driver: `pynvml`, which must be whole: a machine without a driver has no figures.
    """

    def __init__(self, ordinals: tuple[int, ...], visible: str | None, driver: Driver) -> None:
        self._ordinals = ordinals
        self._visible = visible.split(",") if visible else None
        self._driver = driver
        self._newest: dict[str, float] = {}
        self._problem = ""
        self._stop = threading.Event()

    @classmethod
    def of(cls, spec: ActorSpec) -> GpuFigures | None:
        """Those of an actor, read from now on; None when it computes on no GPU."""
        if not (ordinals := ordinals_of(spec)):
            return None
        import pynvml

        figures = cls(ordinals, os.environ.get("CUDA_VISIBLE_DEVICES"), pynvml)
        # A daemon: a read that the driver never returns from must not keep the process alive.
        threading.Thread(
            target=figures.follow, args=(pynvml.NVMLError,), name="gpu", daemon=True
        ).start()
        return figures

    def follow(self, error: type[Exception], wait: Callable[[float], bool] | None = None) -> None:
        """Read until closed. What the driver refuses ends it, and is told in `newest`."""
        wait = wait or self._stop.wait
        try:
            self._driver.nvmlInit()
            handles = [self._handle(ordinal) for ordinal in self._ordinals]
            while True:
                self._newest = self._read(handles)
                if wait(READ_S):
                    return
        except error as refused:
            self._problem, self._newest = str(refused), {}

    def _handle(self, ordinal: int) -> Any:
        if self._visible is None:
            return self._driver.nvmlDeviceGetHandleByIndex(ordinal)
        name = self._visible[ordinal].strip()
        if name.isdigit():
            return self._driver.nvmlDeviceGetHandleByIndex(int(name))
        return self._driver.nvmlDeviceGetHandleByUUID(name)

    def _read(self, handles: list[Any]) -> dict[str, float]:
        used = [self._driver.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
        busy = [self._driver.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
        return {
            "gpu_memory_mib": round(sum(used) / MIB, 1),
            "gpu_utilization": round(sum(busy) / len(busy) / 100, 3),
        }

    def newest(self) -> dict[str, float | str]:
        """`gpu_memory_mib` used and `gpu_utilization` (0 to 1), or `gpu_problem`."""
        return {"gpu_problem": self._problem} if self._problem else dict(self._newest)

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
