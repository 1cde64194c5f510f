"""A version through torch.distributed: one sender, every engine at once, bucket after bucket.

Each publication meets under a name of its own in the sender's store, and everyone gives the number
of members. So arrival in any order is the same, a member of an earlier meeting that comes late
waits for nobody but itself, and who misses a peer for longer than the deadline gives up. Buckets
and the tensors in them are broadcast in one fixed order.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    TCPStore,
)

from milepost.actors.arrays import from_bulk
from milepost.actors.weights.manifest import tensor_bytes
from milepost.messages.bulk import Bulk
from milepost.messages.engine import TensorSpec

LOOPBACK: Final = "127.0.0.1"
Stage: TypeAlias = Callable[[tuple[str, ...], tuple[Bulk, ...]], object]


class BroadcastFailed(RuntimeError):
    """A peer is gone or silent; the text says in which meeting, and what was waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Who meets where.

    Attributes:
        rendezvous: `host:port` of the sender's store.
        group: name of the meeting, never used before.
        rank: of this member; the sender is 0.
        world_size: members in all.
        deadline_s: a peer that is silent for longer is gone.
        device: `cpu` meets over gloo, `cuda` over NCCL.
    """

    rendezvous: str
    group: str
    rank: int
    world_size: int
    deadline_s: float
    device: str


class Rendezvous:
    """The sender's store, where members of every meeting find each other.

    Args:
        host: that engines reach this process under.

    Attributes:
        address: `host:port`.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        listening = socket.create_server((host, 0))
        port = listening.getsockname()[1]
        # The store owns the descriptor from now on. Given one, it does not listen to all networks.
        self._store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self.address = f"{host}:{port}"


def send_buckets(meeting: Meeting, buckets: Iterable[Sequence[Bulk]]) -> None:
    """Rank 0: broadcast every tensor of every bucket.

    Raises:
        BroadcastFailed: a member did not come, or left.
    """
    device = torch.device(meeting.device)

    def send(group: Any) -> None:
        for bucket in buckets:
            for bulk in bucket:
                if not bulk.nbytes:
                    continue
                # A writable copy: torch will not wrap a read-only buffer.
                data = torch.from_numpy(from_bulk(bulk).reshape(-1).view(np.uint8).copy())
                group.broadcast(data.to(device), 0).wait()

    _meet(meeting, send)


def receive_buckets(
    meeting: Meeting, buckets: Iterable[Sequence[TensorSpec]], stage: Stage
) -> None:
    """Every other rank: take what is broadcast.

    Args:
        meeting: of this version.
        buckets: what comes, in order.
        stage: is given each bucket, whole.

    Raises:
        BroadcastFailed: the sender or another member did not come, or left.
    """
    device = torch.device(meeting.device)

    def receive(group: Any) -> None:
        for bucket in buckets:
            tensors = [_receive_one(group, spec, device) for spec in bucket]
            stage(tuple(spec.name for spec in bucket), tuple(tensors))

    _meet(meeting, receive)


def _receive_one(group: Any, spec: TensorSpec, device: torch.device) -> Bulk:
    room: Tensor = torch.empty(tensor_bytes(spec), dtype=torch.uint8, device=device)
    if room.numel():
        group.broadcast(room, 0).wait()
    return Bulk(spec.dtype, spec.shape, room.cpu().numpy().data)


def _meet(meeting: Meeting, act: Callable[[Any], None]) -> None:
    host, _, port = meeting.rendezvous.rpartition(":")
    timeout = timedelta(seconds=meeting.deadline_s)
    try:
        store = TCPStore(host, int(port), is_master=False, timeout=timeout)
        act(_open(meeting, PrefixStore(meeting.group, store), timeout))
    except (RuntimeError, dist.DistError) as error:
        first = str(error).partition("\n")[0]
        raise BroadcastFailed(
            f"meeting {meeting.group} of {meeting.world_size} members, rank {meeting.rank}, "
            f"deadline {meeting.deadline_s} s: {first}"
        ) from error


def _open(meeting: Meeting, store: PrefixStore, timeout: timedelta) -> Any:
    """A gloo or an NCCL group; torch declares no type that both have."""
    from torch.distributed import distributed_c10d

    if torch.device(meeting.device).type == "cuda":
        options = distributed_c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout  # noqa: SLF001 - there is no other way to set it
        return distributed_c10d.ProcessGroupNCCL(store, meeting.rank, meeting.world_size, options)
    if meeting.rendezvous.startswith(LOOPBACK):
        # Gloo would ask the resolver for this host's own name, which bare machines cannot answer.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return distributed_c10d.ProcessGroupGloo(store, meeting.rank, meeting.world_size, timeout)
