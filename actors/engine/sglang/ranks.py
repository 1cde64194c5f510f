"""How a server spreads over processes, and which ways of weights reach all of them.

Tensor- and pipeline-parallel ranks hold one copy of the model, a part of it each. With `dp-size`
there are that many copies, each with requests of its own, and SGLang's doors for weights reach all
of them by the disk alone. With `enable-dp-attention` the data-parallel ranks lie inside of the
tensor-parallel ones: one copy, several caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milepost.actors.engine.sglang.capabilities import UnsupportedServerError


@dataclass(frozen=True, slots=True)
class Parallel:
    """What a server says of its processes.

    Attributes:
        ranks: that take weights together: one payload each, one place in a broadcast each.
        data_ranks: that a request may be routed to; each has a cache of its own.
        copies: whole models, each with such ranks.
        stages: of a pipeline, that the ranks of one copy are spread over.
    """

    ranks: int
    data_ranks: int
    copies: int
    stages: int = 1


def parallel_of(info: dict[str, Any]) -> Parallel:
    """Read `/server_info`."""
    tensor_ranks, data_ranks = int(info["tp_size"]), int(info["dp_size"])
    shares, stages = bool(info.get("enable_dp_attention", False)), int(info.get("pp_size", 1))
    return Parallel(
        ranks=tensor_ranks * stages,
        data_ranks=data_ranks,
        copies=1 if shares else data_ranks,
        stages=stages,
    )


def require_way(update: str, parallel: Parallel) -> None:
    """Refuse a way of weights that would not reach every rank as it was sent.

    With stages, SGLang 0.5.21 reads a version from the disk, says that it serves it, and serves
    something else: seen on two GPUs, with versions of one digest that were right over tensors.

    Raises:
        UnsupportedServerError: several copies, and it is not the disk; or stages, and it is.
    """
    if parallel.stages > 1 and update == "disk":
        raise UnsupportedServerError(
            f"SGLang serves other weights than it reads from the disk when {parallel.stages} "
            'stages of a pipeline hold the model (pp-size): let update = "tensors"'
        )
    if parallel.copies > 1 and update != "disk":
        raise UnsupportedServerError(
            f'by way "{update}" SGLang brings weights to one copy of the model, this server has '
            f'{parallel.copies} (dp-size): let update = "disk", or the option enable-dp-attention'
        )


def require_adapters(parallel: Parallel, device: str) -> None:
    """Refuse adapters on CPU ranks that share one copy of the model.

    SGLang 0.5.21 starts so and serves the policy, but on the CPU it pads a model in parts, an
    adapter's parts do not fit that, and it ends at the first request under one.

    Raises:
        UnsupportedServerError: several ranks of a CPU hold one copy.
    """
    if device == "cpu" and parallel.ranks > 1:
        raise UnsupportedServerError(
            f"SGLang ends at the first request under an adapter when {parallel.ranks} ranks of a "
            "CPU hold one copy of the model: leave out tp-size and pp-size, or the adapters"
        )
