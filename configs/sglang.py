"""`[actors.engine.sglang]`: an SGLang server as the engine, started by its actor or running.

Everything that Milepost itself says to the server stands in `RESERVED`; any other option of the
server may be given in `options`, under the server's own name for it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal

from milepost.configs.base import Config, NonNegative, PositiveFloat

RESERVED: Final[dict[str, str]] = {
    "admin-api-key": "the server listens on this host alone and needs no key",
    "allow-auto-truncate": "a row that is cut is another row than the trainer's",
    "api-key": "the server listens on this host alone and needs no key",
    "base-gpu-id": "set device and gpu_stride",
    "chunked-prefill-size": "set actors.engine.prefill_tokens_max",
    "context-length": "set model.context_tokens_max",
    "device": "set actors.engine.device",
    "dist-init-addr": "an engine is one process group on one host",
    "dtype": "set model.dtype",
    "enable-deterministic-inference": "set deterministic",
    "enable-lora": "set adapters",
    "enable-memory-saver": "set release_memory",
    "enable-return-routed-experts": "set algorithm.replay_routes",
    "host": "the server listens on this host alone",
    "lora-paths": "set adapters",
    "max-running-requests": "set actors.engine.running_max",
    "model": "set model.path",
    "model-path": "set model.path",
    "nnodes": "an engine is one process group on one host",
    "node-rank": "an engine is one process group on one host",
    "port": "a free one is found at each start",
    "random-seed": "set run.seed",
    "served-model-name": "the actor knows its own server by it",
    "skip-tokenizer-init": "the engine speaks token ids, sessions own the text",
    "speculative-accept-threshold-acc": "drafts that the model would not draw are not the policy's",
    "speculative-accept-threshold-single": "drafts the model would not draw are not the policy's",
    "tokenizer-path": "the engine speaks token ids, sessions own the text",
    "weight-version": "versions come from the publisher",
}
"""Options that Milepost sets itself, or that contradict it -> why, or what to set instead."""


class SGLangConfig(Config, kw_only=True):
    """`[actors.engine.sglang]`: read with `kind = "sglang"` only."""

    python: str = ""
    """Interpreter of an environment that has SGLang; empty: the one that runs Milepost."""
    urls: tuple[str, ...] = ()
    """Servers that run already, one for each replica, e.g. `http://127.0.0.1:30000`. Nothing is
    started or stopped then, and nothing but weights and cached prefixes is changed in them."""
    options: dict[str, Any] = {}
    """Options of the server by its own names without the dashes: `tp-size = 2`; true for those that
    take no value, a list for several values, a table for JSON."""
    environment: dict[str, str] = {}
    """Variables of the server's environment, beside the actor's own."""
    adapters: dict[str, str] = {}
    """LoRA adapters by name, each a folder as PEFT writes it; requests of sessions that nobody
    trains may name one. It acts on whatever version serves. Servers at `urls` must have loaded the
    same folders under the same names."""
    gpu_stride: NonNegative = 1
    """Replica i computes on the GPU of `device` + i * gpu_stride, and on those after it."""
    update: Literal["tensors", "disk", "distributed"] = "tensors"
    """How weights reach the server. tensors: as memory of this host (CUDA IPC on a GPU, by value on
    the CPU). disk: as a safetensors file. distributed: broadcast in a process group of its own
    (NCCL from `staging_device`, gloo on the CPU)."""
    staging_device: str = ""
    """Where the next version is gathered. Empty: the server's first device; with `distributed` on
    GPUs it must be another GPU than the server's."""
    deterministic: bool = False
    """Batch-invariant kernels, and seeds of requests count. Without it they have no effect."""
    release_memory: bool = False
    """Give the memory of keys and values back while no request is in flight: for a GPU that is
    shared with a trainer, in a synchronous run. The next request takes it again."""
    silence_s: PositiveFloat = 60.0
    """Longest silence of the server's scheduler, not of its front, before the engine has failed."""
    update_s: PositiveFloat = 120.0
    """Longest time one step of a weight update may take."""


ADAPTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""No `:`, which parts a model from its adapter, and no `=`, which parts a name from its folder."""


TENSOR_RANKS: Final = ("tp-size", "tensor-parallel-size", "tp")
STAGES: Final = ("pp-size", "pipeline-parallel-size", "pp")
DATA_RANKS: Final = ("dp-size", "data-parallel-size", "dp")
SHARED_ATTENTION: Final = "enable-dp-attention"
"""Data-parallel ranks lie inside of the tensor-parallel ones: one copy of the model."""


def num_copies(options: dict[str, Any]) -> int:
    """Whole models in one server with these options."""
    return 1 if SHARED_ATTENTION in options else _size(options, DATA_RANKS)


def num_stages(options: dict[str, Any]) -> int:
    """Stages of a pipeline that one server makes with these options."""
    return _size(options, STAGES)


def num_gpus(options: dict[str, Any]) -> int:
    """GPUs that one server takes with these options."""
    ranks = _size(options, TENSOR_RANKS) * num_stages(options)
    return ranks * num_copies(options)


def _size(options: dict[str, Any], names: tuple[str, ...]) -> int:
    found = [value for name in names if isinstance(value := options.get(name), int)]
    return max([1, *found])


def option_faults(options: dict[str, Any]) -> dict[str, str]:
    """Option -> why it is refused."""
    faults = {name: RESERVED[name] for name in options if name in RESERVED}
    for name, value in options.items():
        if name in faults:
            continue
        if not name or name.startswith("-") or "_" in name:
            faults[name] = "write it as the server does, without the leading dashes: tp-size"
        elif value is False:
            faults[name] = "false says nothing to the server, leave it out"
        elif not isinstance(value, bool | int | float | str | list | dict):
            faults[name] = f"a value of type {type(value).__name__} has no form on a command line"
    return faults


def command_line(options: dict[str, Any]) -> list[str]:
    """Options as words of a command line, sorted by name."""
    words: list[str] = []
    for name, value in sorted(options.items()):
        words.append(f"--{name}")
        match value:
            case True:
                pass
            case list():
                words += [str(item) for item in value]
            case dict():
                words.append(json.dumps(value))
            case _:
                words.append(str(value))
    return words
