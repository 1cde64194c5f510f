"""A version on its way in: copied beside the one that serves, proven whole before it may serve."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import torch
import xxhash

from milepost.actors.arrays import from_bulk
from milepost.actors.engine.embedded.parameters import Parameters
from milepost.actors.engine.embedded.shape import ModelShape
from milepost.actors.engine.interface import EpochError
from milepost.actors.weights.cuda_ipc.reading import HostReader, SideStream
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


class Staging:
    """Two sets of weights: one serves, the other takes the next version in.

    Staged tensors are copied straight into fused weights of their own, so a switch exchanges two
    references. The second set is made when the second version arrives.

    Args:
        shape: sizes of the decoder.
        dtype: of the weights.
        device: of the weights.

    Attributes:
        serving: the weights that compute; None before the first version.
    """

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> None:
        self._make: Callable[[], Parameters] = lambda: Parameters(shape, dtype, device)
        self._spare: Parameters | None = None
        self.serving: Parameters | None = None
        self._open: Parameters | None = None
        self._order: tuple[TensorSpec, ...] = ()
        self._missing: set[str] = set()
        self._num_hashed = 0
        self._hash = xxhash.xxh3_128()
        self._reader = HostReader(device)
        self._side = SideStream(device)

    def open(self, tensors: tuple[TensorSpec, ...], *, randomize: bool = False) -> None:
        """Begin a version made of `tensors`; one that was open is forgotten.

        Args:
            tensors: that will be written.
            randomize: fill them with random bytes first: what never comes cannot look right.
        """
        self.drop()
        # Steps that the spare weights served may still be on the device's list.
        with self._side.entered(behind_others=True):
            self._open = self._spare or self._make()
            if randomize:
                self._open.randomize()
        self._spare = None
        self._order = tensors
        self._missing = {spec.name for spec in tensors}

    def write(self, names: tuple[str, ...], tensors: tuple[Bulk, ...]) -> None:
        """Copy named tensors in.

        Raises:
            EpochError: no version is open, or a tensor is not wanted (any more).
        """
        with self._side.entered():
            for name, tensor in zip(names, tensors, strict=True):
                self._room(name).write(name, from_bulk(tensor))
                self._missing.remove(name)
            self._hash_on()

    def copy(self, names: tuple[str, ...], sources: Sequence[Tensor]) -> None:
        """Copy named tensors in that lie on the same device; it is done with them on return.

        Args:
            names: of the tensors.
            sources: uint8, one dimension: the bytes of each.

        Raises:
            EpochError: as of `write`.
        """
        with self._side.entered():
            for name, source in zip(names, sources, strict=True):
                self._room(name).copy(name, source)
                self._missing.remove(name)
            self._hash_on()

    def check(self, digest: str) -> None:
        """Prove that what was staged is whole and what the sender has.

        The digest is xxh3-128 over name (UTF-8) and bytes of each tensor, in the order given to
        `open`. It is computed over the fused weights themselves, not over what arrived; on a GPU,
        over what the host reads back of them.

        Raises:
            EpochError: tensors are missing or the digest is another one.
        """
        if self._open is None:
            raise EpochError("no epoch is open")
        if self._missing:
            some = ", ".join(sorted(self._missing)[:3])
            raise EpochError(f"{len(self._missing)} tensors never came: {some}")
        if (found := self._hash.hexdigest()) != digest:
            raise EpochError(f"staged weights have digest {found}, the epoch says {digest}")

    def digests(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """xxh3-128 hex of these tensors, read back from the fused weights that serve."""
        assert self.serving is not None, "digests before the first version"
        found = [xxhash.xxh3_128() for _ in names]
        windows = [self.serving.window(name) for name in names]
        with self._side.entered():
            for index, piece in self._reader.pieces(windows):
                found[index].update(piece)
        return tuple(hasher.hexdigest() for hasher in found)

    def switch(self) -> None:
        """Serve what was staged; the weights that served become the next version's room."""
        assert self._open is not None, "switch without an open epoch"
        assert not self._missing, f"switch with {len(self._missing)} tensors missing"
        self._spare, self.serving, self._open = self.serving, self._open, None
        self._forget()

    def drop(self) -> None:
        """Forget what was staged."""
        if self._open is not None:
            self._spare, self._open = self._open, None
        self._forget()

    def _forget(self) -> None:
        self._order, self._missing, self._num_hashed = (), set(), 0
        self._hash = xxhash.xxh3_128()

    def _hash_on(self) -> None:
        """Hash the tensors that arrived so far, in order, up to the first that is missing."""
        assert self._open is not None
        rest = (spec.name for spec in self._order[self._num_hashed :])
        names = list(takewhile(lambda name: name not in self._missing, rest))
        num_named = 0
        for index, piece in self._reader.pieces(map(self._open.window, names)):
            # Names up to this one: tensors without elements have no piece.
            while num_named <= index:
                self._hash.update(names[num_named].encode())
                num_named += 1
            self._hash.update(piece)
        for name in names[num_named:]:
            self._hash.update(name.encode())
        self._num_hashed += len(names)

    def _room(self, name: str) -> Parameters:
        """Where a tensor is written to."""
        if self._open is None:
            raise EpochError("no epoch is open")
        if name not in self._missing:
            raise EpochError(f"tensor {name} is not of this epoch, or came twice")
        return self._open
