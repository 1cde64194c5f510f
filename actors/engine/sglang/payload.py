"""Tensors in the form that SGLang's `/update_weights_from_tensor` takes: pickles in base64.

One buffer of bytes for many tensors, and where each of them lies in it (SGLang's
`flattened_bucket`): the server opens one handle instead of one for each tensor, while generation
pauses.

This is the one place of Milepost that writes pickles, and it never reads one: the bytes go from
this actor to its own server, over loopback.
"""

from __future__ import annotations

import base64
import io
import pickle  # noqa: TID251 - the server's format, written and never read
from collections.abc import Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.multiprocessing

FORMAT: Final = "flattened_bucket"
"""What the server must be told beside the payload (`load_format`)."""
ALIGNMENT: Final = 256
"""Bytes; where tensors of a copied bucket begin: a window of any dtype may begin there."""

Named = Sequence[tuple[str, torch.Tensor]]


def by_handle(tensors: Named) -> str:
    """A handle to memory of a GPU (CUDA IPC): the server reads it where it lies.

    The tensors are windows into one buffer, which must stay until the server has answered.
    """
    storage = tensors[0][1].untyped_storage()
    places = []
    for name, tensor in tensors:
        assert tensor.untyped_storage().data_ptr() == storage.data_ptr(), f"{name} lies elsewhere"
        start = int(tensor.storage_offset()) * tensor.element_size()
        places.append(_place(name, tensor, start))
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump({"flattened_tensor": whole, "metadata": places})
    return base64.b64encode(buffer.getbuffer()).decode()


def by_value(tensors: Named, bytes_max: int) -> Iterator[str]:
    """The values themselves, in pieces of about `bytes_max` or one tensor."""
    piece: list[tuple[str, torch.Tensor]] = []
    num_bytes = 0
    for name, tensor in tensors:
        if piece and num_bytes + tensor.nbytes > bytes_max:
            yield _copied(piece)
            piece, num_bytes = [], 0
        piece.append((name, tensor))
        num_bytes += tensor.nbytes
    if piece:
        yield _copied(piece)


def _copied(piece: Named) -> str:
    places, size = [], 0
    for name, tensor in piece:
        places.append(_place(name, tensor, size))
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    whole = torch.zeros(size, dtype=torch.uint8)
    for place, (_, tensor) in zip(places, piece, strict=True):
        whole[place.start_idx : place.end_idx] = tensor.reshape(-1).view(torch.uint8)
    return base64.b64encode(pickle.dumps({"flattened_tensor": whole, "metadata": places})).decode()


def _place(name: str, tensor: torch.Tensor, start: int) -> Any:
    """Where a tensor lies, under the names that the server reads; no class of its own is needed."""
    return SimpleNamespace(
        name=name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        start_idx=start,
        end_idx=start + tensor.nbytes,
        numel=tensor.nbytes,
    )
