"""All tensors of one version in one block of nameless memory that other processes can map."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from milepost.actors.weights.manifest import Layout, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Arena:
    """One version's bytes.

    Args:
        layout: where each tensor lies.
        descriptor: of memory that exists; -1 makes new memory. It has no name, so nothing is left
            of it when its processes are gone.

    Attributes:
        descriptor: to be handed to a worker process.
    """

    def __init__(self, layout: Layout, descriptor: int = -1) -> None:
        self.layout = layout
        if descriptor < 0:
            descriptor = os.memfd_create("weights")
            os.ftruncate(descriptor, layout.total)
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, layout.total)
        self._all = np.frombuffer(self._map, np.uint8)

    def view(self, name: str) -> NDArray[np.uint8]:
        """uint8 [bytes] of one tensor; writing to it changes the arena."""
        at = self.layout.offsets[name]
        return self._all[at : at + self.layout.nbytes(name)]

    def digest(self, names: Iterable[str] | None = None) -> str:
        """As in `State`."""
        order = sorted(self.layout.specs) if names is None else names
        return digest_of((name, self.view(name).data) for name in order)

    def close(self) -> None:
        """Give the memory back; the mapping ends with the last view of it."""
        os.close(self.descriptor)
