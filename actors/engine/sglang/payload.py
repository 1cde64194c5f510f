"""Tensors in the form that SGLang's `/update_weights_from_tensor` takes: pickles in base64.

This is the one place of Milepost that writes pickles, and it never reads one: the bytes go from
this actor to its own server, over loopback.
"""

from __future__ import annotations

import base64
import io
import pickle  # noqa: TID251 - the server's format, written and never read
from collections.abc import Iterable, Iterator
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing


def by_handle(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Handles to memory of a GPU (CUDA IPC): the server reads it where it lies.

    The tensors must stay where they are until the server has answered.
    """
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(list(tensors))
    return base64.b64encode(buffer.getbuffer()).decode()


def by_value(tensors: Iterable[tuple[str, torch.Tensor]], bytes_max: int) -> Iterator[str]:
    """The values themselves, in pieces of about `bytes_max` or one tensor."""
    piece: list[tuple[str, torch.Tensor]] = []
    num_bytes = 0
    for name, tensor in tensors:
        if piece and num_bytes + tensor.nbytes > bytes_max:
            yield _pickled(piece)
            piece, num_bytes = [], 0
        # A clone: a view would be written with all of the storage behind it.
        piece.append((name, tensor.clone()))
        num_bytes += tensor.nbytes
    if piece:
        yield _pickled(piece)


def _pickled(piece: list[tuple[str, torch.Tensor]]) -> str:
    return base64.b64encode(pickle.dumps(piece)).decode()
