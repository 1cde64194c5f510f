"""FSDP2 over the ranks: what is sharded, in which precision, and who adds gradients up."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from milepost.actors.trainer.fsdp.fusing import fuse
from milepost.actors.trainer.fsdp.group import RankGroup
from milepost.actors.trainer.fsdp.model import PackedPolicy, decoder_layers

LAYERED_ABOVE_PARAMETERS = 100_000_000
"""Smaller models are one FSDP group: gathering layer by layer would cost more than it saves."""

Sharding: TypeAlias = Literal["none", "whole", "layered"]


class ShardedPolicy:
    """A `PackedPolicy` under FSDP2, its master parameters in float32.

    Attributes:
        module: call it; its parameters are sharded `DTensor`s.
        sharding: `whole`, one FSDP group; `layered`, a group for each decoder layer, gathered when
            its turn comes; `none`, plain tensors.
        compute: dtype of forward and backward.
        fused: classes of layers that were replaced, see `fuse`.
    """

    def __init__(
        self,
        module: PackedPolicy,
        group: RankGroup,
        *,
        compute: torch.dtype,
        sharding: Sharding | None = None,
    ) -> None:
        """Shard `module` over `group`.

        Args:
            module: on the CPU, in float32, the same on every rank.
            group: the ranks.
            compute: dtype of parameters in forward and backward; gradients are reduced in float32.
            sharding: by default, by size; a single rank that computes in float32 has nothing to
                shard, cast or reduce, and is spared the 3 ms a step that doing so would take.
        """
        count = sum(parameter.numel() for parameter in module.parameters())
        half = compute != torch.float32
        if sharding is None:
            sharding = "layered" if count > LAYERED_ABOVE_PARAMETERS else "whole"
            if group.world_size == 1 and not half:
                sharding = "none"
        assert sharding != "none" or group.world_size == 1, "ranks must share their gradients"
        self.module = module.to(group.device)
        self.sharding = sharding
        self.compute = compute
        self.num_parameters = count
        self.fused = () if half or group.device.type != "cpu" else fuse(module.lm)
        self._root: FSDPModule | None = None
        if sharding == "none":
            return
        policy = MixedPrecisionPolicy(
            param_dtype=compute if half else None,
            reduce_dtype=torch.float32 if half else None,
        )
        if sharding == "layered":
            for layer in decoder_layers(module.lm):
                fully_shard(
                    layer,
                    mesh=group.mesh,
                    mp_policy=policy,
                    reshard_after_forward=group.world_size > 1,
                )
        fully_shard(module, mesh=group.mesh, mp_policy=policy, reshard_after_forward=False)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                # The weights of loss tokens hold the global normaliser already: ranks add up, no
                # mean. Each group has this setting of its own, the root's does not reach layers.
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        self._root = cast("FSDPModule", module)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Sharded parameters by their name in `PackedPolicy`, tied ones once."""
        return dict(self.module.named_parameters())

    def accumulate(self, *, last: bool) -> None:
        """Say before a backward pass whether it is the last one of this optimizer step.

        A model in one group keeps whole gradients until the last pass and reduces once. A layered
        one cannot afford whole gradients and reduces in every pass.
        """
        if self._root is None:
            return
        if self.sharding == "whole":
            self._root.set_requires_gradient_sync(last)
        self._root.set_is_last_backward(last)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one; collective. A plain tensor stays what it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
