"""Bytes of a GPU as the host sees them, a piece at a time, through memory that stays pinned.

To copy into ordinary memory costs a page fault for each 4 KiB and a second copy inside the driver;
through two pinned pieces, one is filled while the other is being hashed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
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
        device: of the tensors. What is on the CPU is read where it lies.
        piece_bytes: most bytes of a piece.
        copies: None: as the device needs it; True: also on the CPU, as it is done for a GPU.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        piece_bytes: int = PIECE_BYTES,
        copies: bool | None = None,
    ) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._piece_bytes = piece_bytes
        self._copies = self._is_gpu if copies is None else copies
        self._rooms: tuple[Tensor, Tensor] | None = None

    def pieces(self, sources: Iterable[Tensor]) -> Iterator[tuple[int, memoryview]]:
        """All bytes in order, each piece with the index of the tensor that it is of.

        A piece may be read until the next one is asked for. Many small tensors are waited for
        together, as one large one is in parts. A tensor without elements has no piece.

        Args:
            sources: contiguous.
        """
        if self._copies:
            yield from self._copied(self._batches(sources))
            return
        for batch in self._batches(sources):
            for index, part in batch:
                yield index, part.numpy().data

    def _batches(self, sources: Iterable[Tensor]) -> Iterator[list[tuple[int, Tensor]]]:
        """Parts that fill one room, each with its index."""
        batch: list[tuple[int, Tensor]] = []
        room_bytes = self._piece_bytes
        for index, source in enumerate(sources):
            rest = source.reshape(-1).view(torch.uint8)
            while rest.numel():
                part, rest = rest[:room_bytes], rest[room_bytes:]
                batch.append((index, part))
                room_bytes -= part.numel()
                if not room_bytes:
                    yield batch
                    batch, room_bytes = [], self._piece_bytes
        if batch:
            yield batch

    def _copied(
        self, batches: Iterator[list[tuple[int, Tensor]]]
    ) -> Iterator[tuple[int, memoryview]]:
        """While the parts of one room are read, the other is filled."""
        waiting: tuple[list[tuple[int, memoryview]], torch.cuda.Event | None] | None = None
        for number, batch in enumerate(batches):
            room, end = self._prepared()[number % 2], 0
            views = []
            for index, part in batch:
                place = room[end : end + part.numel()]
                place.copy_(part, non_blocking=True)
                views.append((index, place.numpy().data))
                end += part.numel()
            filled = views, self._marked()
            if waiting is not None:
                yield from _finished(*waiting)
            waiting = filled
        if waiting is not None:
            yield from _finished(*waiting)

    def _marked(self) -> torch.cuda.Event | None:
        """What is done once everything ordered so far is."""
        if not self._is_gpu:
            return None
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        return done

    def _prepared(self) -> tuple[Tensor, Tensor]:
        if self._rooms is None:
            size, kind, pinned = self._piece_bytes, torch.uint8, self._is_gpu
            # A thread that never chose a device would pin for the first one, and wake it up.
            with torch.cuda.device(self._device) if pinned else nullcontext():
                self._rooms = (
                    torch.empty(size, dtype=kind, pin_memory=pinned),
                    torch.empty(size, dtype=kind, pin_memory=pinned),
                )
        return self._rooms


def _finished(
    views: list[tuple[int, memoryview]], done: torch.cuda.Event | None
) -> Iterator[tuple[int, memoryview]]:
    if done is not None:
        done.synchronize()
    yield from views
