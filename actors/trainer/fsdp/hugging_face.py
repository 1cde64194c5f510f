"""A checkpoint folder any Hugging Face reader can load: weights, config, tokenizer, template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

WEIGHT_SUFFIXES: Final = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5"}
INDEX: Final = "model.safetensors.index.json"
SHARD_BYTES_MAX: Final = 5 * 1000**3


def write_hugging_face(
    folder: Path,
    source: Path,
    tensors: dict[str, Tensor],
    *,
    shard_bytes_max: int = SHARD_BYTES_MAX,
) -> None:
    """Write the folder.

    Args:
        folder: is made; must not exist.
        source: the checkpoint the run started from: everything in it but weights is copied
            (config, generation config, tokenizer files, chat template).
        tensors: by Hugging Face name, on the CPU, contiguous, all of one dtype.
        shard_bytes_max: of one weight file; more files than one get an index.
    """
    folder.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix not in WEIGHT_SUFFIXES and path.name != INDEX:
            shutil.copyfile(path, folder / path.name)
    _set_dtype(folder / "config.json", tensors)
    shards = _cut_shards(tensors, shard_bytes_max)
    if len(shards) == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        part = {name: tensors[name] for name in names}
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def _set_dtype(path: Path, tensors: dict[str, Tensor]) -> None:
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    dtype = next(iter(tensors.values())).dtype
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _cut_shards(tensors: dict[str, Tensor], bytes_max: int) -> list[list[str]]:
    shards: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        if not shards or tensor.nbytes > room:
            shards.append([])
            room = bytes_max
        shards[-1].append(name)
        room -= tensor.nbytes
    return shards
