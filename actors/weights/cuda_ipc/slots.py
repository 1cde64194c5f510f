"""The trainer's end: memory that versions are exported into, each kept for as long as it is read.

Invariants:
    CI-1 (still): memory of a version is written once, before anybody is told its handle, and again
        only after the publisher said that no engine needs the version any more.
    CI-2 (few): memory is used again; what is allocated is what was needed at one time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from milepost.actors.weights.cuda_ipc.runtime import Runtime
from milepost.messages.engine import DeviceMemory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One allocation.

    Attributes:
        memory: as others are told of it.
        view: uint8 [num_bytes], all of it.
    """

    memory: DeviceMemory
    view: Tensor


class Slots:
    """All allocations of one trainer; in the steady state two, of the served version and the next.

    `take` is called by the thread that exports, everything else by any thread.

    Args:
        runtime: of the trainer's GPU.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = Lock()
        self._held: list[tuple[int, Slot]] = []
        self._free: list[Slot] = []

    def take(self, version: int, num_bytes: int) -> Slot:
        """Memory to export a version into; it is held from now on.

        Raises:
            CudaError: the GPU has no room for one more.
        """
        with self._lock:
            fits = [slot for slot in self._free if slot.memory.num_bytes >= num_bytes]
            slot = min(fits, key=lambda one: one.memory.num_bytes) if fits else None
            if slot is not None:
                self._free.remove(slot)
        # Outside of the lock: others wait for a list, never for the GPU.
        slot = slot or self._allocate(num_bytes)
        with self._lock:
            self._held.append((version, slot))
        return slot

    def find(self, version: int) -> Slot | None:
        """Where a version lies; the newest export of it. None: it is held no longer."""
        with self._lock:
            return next((slot for at, slot in reversed(self._held) if at == version), None)

    def keep(self, versions: Iterable[int], *, announced: int) -> None:
        """Of all versions up to `announced`, only these are still read."""
        wanted = frozenset(versions)
        with self._lock:
            gone = [at not in wanted and at <= announced for at, _ in self._held]
            held = list(zip(gone, self._held, strict=True))
            self._free += [slot for is_gone, (_, slot) in held if is_gone]
            self._held = [entry for is_gone, entry in held if not is_gone]

    @property
    def held(self) -> tuple[int, ...]:
        """Versions whose memory holds still."""
        with self._lock:
            return tuple(version for version, _ in self._held)

    @property
    def num_slots(self) -> int:
        """Allocations so far."""
        with self._lock:
            return len(self._held) + len(self._free)

    def _allocate(self, num_bytes: int) -> Slot:
        address = self._runtime.allocate(num_bytes)
        memory = DeviceMemory(
            device=self._runtime.uuid,
            handle=self._runtime.handle(address),
            num_bytes=num_bytes,
        )
        return Slot(memory, self._runtime.view(address, num_bytes))
