"""The next version, gathered in one buffer of this actor and proven whole before it may serve."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import xxhash

from milepost.actors.engine.interface import EpochError
from milepost.messages.bulk import ITEM_BYTES, Bulk
from milepost.messages.engine import TensorSpec

ALIGNMENT: Final = 256
"""Bytes; where each tensor begins, as CUDA's own allocations do."""


class Staging:
    """One version on its way in.

    Args:
        device: where it is gathered.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._order: tuple[TensorSpec, ...] = ()
        self._tensors: dict[str, torch.Tensor] = {}
        self._missing: set[str] = set()
        self._open = False

    def open(self, tensors: tuple[TensorSpec, ...]) -> None:
        """Begin a version made of `tensors`; one that was open is forgotten.

        The buffer is kept from version to version: a server that has it mapped need not map again.
        """
        places: dict[str, int] = {}
        size = 0
        for spec in tensors:
            places[spec.name] = size
            size += -(-_num_bytes(spec) // ALIGNMENT) * ALIGNMENT
        if self._buffer.numel() != size:
            self._tensors = {}
            self._buffer = torch.empty(0, dtype=torch.uint8, device=self._device)
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self._device)
        for spec in tensors:
            start = places[spec.name]
            raw = self._buffer[start : start + _num_bytes(spec)]
            dtype: torch.dtype = getattr(torch, spec.dtype)
            self._tensors[spec.name] = raw.view(dtype).view(spec.shape)
        self._order = tensors
        self._missing = {spec.name for spec in tensors}
        self._open = True

    def write(self, names: tuple[str, ...], tensors: tuple[Bulk, ...]) -> None:
        """Copy named tensors in.

        Raises:
            EpochError: no version is open, or a tensor is not wanted (any more).
        """
        if not self._open:
            raise EpochError("no epoch is open")
        for name, bulk in zip(names, tensors, strict=True):
            if name not in self._missing:
                raise EpochError(f"tensor {name} is not of this epoch, or came twice")
            target = self._tensors[name]
            if bulk.nbytes:
                host = torch.empty(bulk.nbytes, dtype=torch.uint8)
                host.numpy()[:] = np.frombuffer(bulk.data, np.uint8)
                target.view(-1).view(torch.uint8).copy_(host)
            self._missing.remove(name)

    def check(self, digest: str) -> None:
        """Prove that what was staged is whole and what the sender has.

        The digest is xxh3-128 over name (UTF-8) and bytes of each tensor, in the order given to
        `open`, over the buffer that the server will read, not over what arrived.

        Raises:
            EpochError: tensors are missing or the digest is another one.
        """
        if not self._open:
            raise EpochError("no epoch is open")
        if self._missing:
            some = ", ".join(sorted(self._missing)[:3])
            raise EpochError(f"{len(self._missing)} tensors never came: {some}")
        hasher = xxhash.xxh3_128()
        for spec in self._order:
            hasher.update(spec.name.encode())
            raw = self._tensors[spec.name].view(-1).view(torch.uint8)
            hasher.update(raw.cpu().numpy().data)
        if (found := hasher.hexdigest()) != digest:
            raise EpochError(f"staged weights have digest {found}, the epoch says {digest}")

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Every tensor of the version, as windows into the buffer."""
        assert self._open, "nothing is staged"
        assert not self._missing, f"{len(self._missing)} tensors are missing"
        return [(spec.name, self._tensors[spec.name]) for spec in self._order]

    def drop(self) -> None:
        """Forget what was staged; the buffer stays for the next version."""
        self._open = False
        self._missing = set()


def _num_bytes(spec: TensorSpec) -> int:
    size = ITEM_BYTES[spec.dtype]
    for length in spec.shape:
        size *= length
    return size
