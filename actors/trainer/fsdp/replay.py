"""Routing replay: rows go through the experts that the engine chose for them.

A router's choice of experts is discrete: a rounding that differs in the last bit sends a token to
another expert, and the log-prob that is trained is no longer that of the policy that sampled.
Replayed is the choice alone (R3; Ma et al. 2025, arXiv:2510.11370). The shares of the chosen
experts are the trainer's own, from its own router, whose gradient flows through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from milepost.actors.routes import RoutesShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from milepost.actors.trainer.fsdp.packing import PackedRoutes

ROUTERS: Final = {"qwen3_moe": "Qwen3MoeTopKRouter"}
"""Class of the router, by the type of the model: softmax over all experts, then top-k."""


class NotReplayable(ValueError):
    """The routers of this model cannot be told what to choose."""


@dataclass(slots=True)
class _Pass:
    """The forward pass that computes now, or did last: a backward pass may compute it again."""

    routes: PackedRoutes | None = None


class RoutesReplay:
    """Replays routes in every router of a model.

    Args:
        lm: a model whose layers are not sharded yet.
        shape: of the routes that will come.

    Raises:
        NotReplayable: a model of another kind, or routers that do not fit the routes.
    """

    def __init__(self, lm: PreTrainedModel, shape: RoutesShape) -> None:
        kind = str(lm.config.model_type)
        if kind not in ROUTERS:
            known = ", ".join(ROUTERS)
            raise NotReplayable(f"routes of {kind} cannot be replayed, known are {known}")
        router_class = getattr(import_module(type(lm).__module__), ROUTERS[kind])
        routers: list[Any] = [each for each in lm.modules() if isinstance(each, router_class)]
        found = {(len(routers), each.top_k, each.num_experts) for each in routers}
        if found != {(shape.num_layers, shape.experts_per_token, shape.num_experts)}:
            raise NotReplayable(
                f"routers (layers, experts per token, experts) are {sorted(found)}, {shape} come"
            )
        _check_output(routers[0])
        self._pass = _Pass()
        self._differing: list[Tensor] = [torch.zeros(())] * len(routers)
        for layer, router in enumerate(routers):
            router.register_forward_hook(self._hook(layer))

    def begin(self, routes: PackedRoutes | None) -> None:
        """The next forward pass, and its backward pass, go through these; None: its own choice."""
        self._pass.routes = routes

    def mismatches(self) -> tuple[Tensor, int]:
        """Of the last forward pass: places where the trainer would have chosen otherwise, and all.

        Returns:
            int64 scalar of (token, layer) pairs whose set of experts differs, and their number.
        """
        routes = self._pass.routes
        if routes is None:
            return torch.zeros((), dtype=torch.int64), 0
        return torch.stack(self._differing).sum(), routes.num_known * len(self._differing)

    def _hook(self, layer: int) -> Any:
        """Takes the place of what a router returned: logits, shares and indices, each [T, ...]."""

        def replay(
            router: nn.Module, _: object, output: tuple[Tensor, Tensor, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor] | None:
            routes = self._pass.routes
            if routes is None:
                return None
            logits, _shares, own = output
            chosen = torch.where(routes.known[:, None], routes.chosen[:, layer].long(), own)
            # The same value when a backward pass computes this one again: set, not added.
            self._differing[layer] = _count_differing(own, chosen)
            return logits, _shares_of(router, logits, chosen), chosen

        return replay


def _shares_of(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """As the router's own: softmax over all experts in float32, rescaled where the model does."""
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, chosen)
    if router.norm_topk_prob:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return shares.to(logits.dtype)


def _check_output(router: Any) -> None:
    """Try a router: the shares of its own choice must be those that are computed here.

    Raises:
        NotReplayable: it returns something else than logits, shares and indices.
    """
    width = int(router.weight.shape[-1])
    hidden = torch.linspace(-1.0, 1.0, 4 * width, dtype=router.weight.dtype).view(4, width)
    with torch.no_grad():
        output = router(hidden)
        if isinstance(output, tuple) and len(output) == 3:
            logits, shares, own = output
            if torch.allclose(_shares_of(router, logits, own), shares, atol=1e-6):
                return
    raise NotReplayable(
        f"{type(router).__name__} of this release of transformers does not return logits, shares "
        f"and indices: take the release that constraints/cpu.txt names, or set "
        f"algorithm.replay_routes = false"
    )


def _count_differing(own: Tensor, chosen: Tensor) -> Tensor:
    """Tokens whose set of experts is another one; int64 scalar."""
    return (own.sort(-1).values != chosen.sort(-1).values).any(-1).sum()
