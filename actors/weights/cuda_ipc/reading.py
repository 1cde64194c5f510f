"""Bytes of a GPU as the host sees them, a piece at a time, through memory that stays pinned.

To copy into ordinary memory costs a page fault for each 4 KiB and a second copy inside the driver;
through two pinned pieces, one is filled while the other is being hashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

PIECE_BYTES: Final = 32 << 20


class SideStream:
    """An order of its own for copies: in the default one they would stand between kernels.

    Used by one thread. On the CPU, where everything is done at once, it does nothing.

    Args:
        device: of the copies.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def entered(self, *, behind_others: bool = False) -> Iterator[None]:
        """What is ordered within is ordered here, and done at the end, however that comes.

        Args:
            behind_others: not before what the device's default stream was given so far.
        """
        if self._stream is None:
            yield
            return
        if behind_others:
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()


class HostReader:
    """Reads tensors of one device, in the current stream; used by one thread.

    Args:
        device: of the tensors. On the CPU nothing is copied.
        piece_bytes: most bytes of a piece.
    """

    def __init__(self, device: torch.device, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._device = device
        self._rooms: tuple[Tensor, Tensor] | None = None

    def pieces(self, source: Tensor) -> Iterator[memoryview]:
        """All bytes in order; each piece may be read until the next one is asked for.

        Args:
            source: contiguous.
        """
        flat = source.reshape(-1).view(torch.uint8)
        starts = range(0, flat.numel(), self._piece_bytes)
        parts = (flat[start : start + self._piece_bytes] for start in starts)
        if self._device.type == "cpu":
            for part in parts:
                yield part.numpy().data
            return
        yield from self._copied(parts)

    def _copied(self, parts: Iterator[Tensor]) -> Iterator[memoryview]:
        rooms, stream = self._prepared(), torch.cuda.current_stream(self._device)
        waiting: tuple[Tensor, torch.cuda.Event] | None = None
        for index, part in enumerate(parts):
            room = rooms[index % 2][: part.numel()]
            room.copy_(part, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
            if waiting is not None:
                yield _finished(*waiting)
            waiting = room, done
        if waiting is not None:
            yield _finished(*waiting)

    def _prepared(self) -> tuple[Tensor, Tensor]:
        if self._rooms is None:
            size, kind = self._piece_bytes, torch.uint8
            # A thread that never chose a device would pin for the first one, and wake it up.
            with torch.cuda.device(self._device):
                self._rooms = (
                    torch.empty(size, dtype=kind, pin_memory=True),
                    torch.empty(size, dtype=kind, pin_memory=True),
                )
        return self._rooms


def _finished(room: Tensor, done: torch.cuda.Event) -> memoryview:
    done.synchronize()
    return room.numpy().data
