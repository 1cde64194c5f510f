"""Weights over a process group of this actor and the server's ranks: NCCL on GPUs, gloo else."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, TCPStore
from torch.distributed.distributed_c10d import _new_process_group_helper

from milepost.actors.engine.sglang.launch import free_port
from milepost.actors.engine.sglang.updates import Push, Session

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

GROUP: Final = "milepost-weights"
NAME: Final[Any] = GROUP
"""Some releases of torch want a type of their own here, others have none."""


class BroadcastUpdate:
    """Rank 0 is this actor, the others are the server's.

    Args:
        session: doors of the server.
        ranks: of the server, all of them.
        device: where the staged version lies.
        deadline_s: of each collective.
    """

    def __init__(
        self, session: Session, ranks: int, device: torch.device, deadline_s: float
    ) -> None:
        self._session, self._ranks, self._device = session, ranks, device
        self._timeout = timedelta(seconds=deadline_s)
        self._backend = "nccl" if device.type == "cuda" else "gloo"
        self._group: ProcessGroup | None = None
        self._tensors: list[tuple[str, torch.Tensor]] = []
        # Collectives block; a thread of their own never waits behind staging.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="broadcast")
        # SGLang switches this off in its processes, and both ends must agree.
        os.environ["NCCL_CUMEM_ENABLE"] = "0"

    async def prepare(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Join the group, once."""
        self._tensors = tensors
        if self._group is not None:
            return
        port = free_port()
        body = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": self._ranks + 1,
            "group_name": GROUP,
            "backend": self._backend,
        }
        loop = asyncio.get_running_loop()
        joined = loop.run_in_executor(self._thread, self._join, port)
        asked = self._session.post("/init_weights_update_group", body)
        _, self._group = await asyncio.gather(asked, joined)

    async def push(self, push: Push) -> None:
        """Broadcast every tensor while the server's ranks receive."""
        await self._session.begin()
        body: dict[str, Any] = {
            "names": [name for name, _ in self._tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in self._tensors],
            "shapes": [list(tensor.shape) for _, tensor in self._tensors],
            "group_name": GROUP,
            "flush_cache": push.flush,
            "weight_version": str(push.version),
        }
        loop = asyncio.get_running_loop()
        sent = loop.run_in_executor(self._thread, self._send)
        await asyncio.gather(self._session.post("/update_weights_from_distributed", body), sent)
        await self._session.end()

    def close(self) -> None:
        """Leave the group; the server's ranks end with their processes."""
        self._thread.shutdown(wait=False)

    def _join(self, port: int) -> ProcessGroup:
        # As `init_process_group`, but a group beside whatever this process has already: the store's
        # keys must be those that the server's ranks use.
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        world = self._ranks + 1
        store = TCPStore(
            "127.0.0.1", port, world, is_master=True, timeout=self._timeout, wait_for_workers=False
        )
        group: ProcessGroup
        group, _ = _new_process_group_helper(
            world,
            0,
            [],
            dist.Backend(self._backend),
            PrefixStore(GROUP, store),
            group_name=NAME,
            timeout=self._timeout,
        )
        return group

    def _send(self) -> None:
        assert self._group is not None, "broadcast before joining"
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        works = [self._group.broadcast([tensor], options) for _, tensor in self._tensors]
        for work in works:
            work.wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
