"""A plugin of SGLang, loaded in each of its processes: what it expects of CUDA, on a CPU.

Three features ask for memory or kernels that only a CUDA build has: adapters (pinned memory), the
routes of experts (a registered host buffer) and seeded sampling (batch-invariant kernels).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch


def register() -> None:
    """Called by SGLang at the start of each process."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1" or torch.cuda.is_available():
        return
    _ignore_pinning()
    _register_host_buffers()
    _allow_seeds()


def _ignore_pinning() -> None:
    """A CPU build of torch raises where `pin_memory` is asked for; nothing is gained by it here."""

    def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(make)
        def made(*args: Any, **options: Any) -> torch.Tensor:
            options.pop("pin_memory", None)
            return make(*args, **options)

        return made

    for name in ("arange", "empty", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    vars_of_tensor: Any = torch.Tensor
    vars_of_tensor.pin_memory = lambda tensor, *_args, **_options: tensor


def _register_host_buffers() -> None:
    from sglang.srt.mem_cache.pool_host import common

    def allocate(shape: Any, dtype: torch.dtype, *_args: Any, **_options: Any) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    common.ALLOC_MEMORY_FUNCS["cpu"] = allocate


def _allow_seeds() -> None:
    """`--enable-deterministic-inference` brings seeds of requests; CPU kernels stay as they are."""
    import sglang.srt.batch_invariant_ops as package
    from sglang.srt.batch_invariant_ops import batch_invariant_ops as module

    try:
        from sglang.srt.arg_groups import choices
    except ImportError:  # until 0.5.19
        from sglang.srt import server_args as choices

    choices.add_deterministic_attention_backend_choices(["torch_native"])
    choices.add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
    for place in (package, module):
        place.enable_batch_invariant_mode = lambda *_args, **_options: None
