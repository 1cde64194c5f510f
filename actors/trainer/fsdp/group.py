"""The ranks of one trainer as a torch process group on one device mesh."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    HashStore,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One rank's place in its group."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def leads(self) -> bool:
        """Rank 0 writes files and speaks for all."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def highest(self, values: Tensor) -> Tensor:
        """Maximum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """The tensors of all ranks, equal in shape, in rank order."""
        if self.world_size == 1:
            return [values]
        parts = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(parts, values)
        return parts

    def meet(self) -> None:
        """Return when every rank has come this far."""
        if self.world_size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def open_group(
    *, rank: int, world_size: int, device: str, rendezvous: Path, deadline_s: float
) -> RankGroup:
    """Join the group of this run; returns when all ranks have.

    Args:
        rank: of this process.
        world_size: ranks in all; with 1 nothing is written and nobody is waited for.
        device: `cpu` (gloo) or `cuda`, `cuda:N` (nccl); with plain `cuda`, rank r takes the GPU
            r modulo the number of GPUs of this host.
        rendezvous: file the ranks find each other through; fresh for each start of a run.
        deadline_s: longest wait for other ranks, now and in each collective.

    Raises:
        ValueError: a device that this machine lacks.
    """
    place = _place(device, rank)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    elif world_size > 1:
        # Gloo would ask the resolver for this host's own name, which bare machines cannot answer.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rendezvous.parent.mkdir(parents=True, exist_ok=True)
    dist.init_process_group(
        backend="nccl" if place.type == "cuda" else "gloo",
        store=HashStore() if world_size == 1 else FileStore(str(rendezvous), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=deadline_s),
        device_id=place if place.type == "cuda" else None,
    )
    mesh = init_device_mesh(place.type, (world_size,), mesh_dim_names=("shard",))
    return RankGroup(rank, world_size, place, mesh)


def _place(device: str, rank: int) -> torch.device:
    place = torch.device(device)
    if place.type == "cpu":
        return place
    if place.type != "cuda":
        raise ValueError(f"actors.trainer.device is {device!r}, known are cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    index = place.index if ":" in device else rank % max(count, 1)
    if index >= count:
        raise ValueError(f"actors.trainer.device is {device!r}, but this host has {count} GPUs")
    return torch.device("cuda", index)
