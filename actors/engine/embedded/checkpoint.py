"""Reading a Hugging Face checkpoint folder: one `model.safetensors`, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def checkpoint_tensors(folder: Path, dtype: torch.dtype) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every tensor of the checkpoint, one at a time, converted to `dtype`.

    Yields:
        Hugging Face name and array (bfloat16 as uint16).

    Raises:
        FileNotFoundError: the folder holds neither a single file nor an index.
    """
    for file in _files(folder):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping, it cannot be iterated
                tensor = tensors.get_tensor(name).to(dtype)
                bits = tensor.view(torch.uint16) if dtype == torch.bfloat16 else tensor
                yield name, bits.numpy()


def _files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return sorted({folder / name for name in index["weight_map"].values()})
    raise FileNotFoundError(f"{folder} holds neither {_SINGLE} nor {_INDEX}")
