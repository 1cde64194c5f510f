"""Whether this rank offers its versions by handle, decided once, before the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from milepost.actors.trainer.fsdp.device_export import DeviceExporter
from milepost.actors.trainer.fsdp.export import DTYPES
from milepost.actors.weights.cuda_ipc.runtime import CudaError
from milepost.actors.weights.transports import offers_handles

if TYPE_CHECKING:
    from milepost.actors.trainer.fsdp.group import RankGroup
    from milepost.actors.weights.cuda_ipc.runtime import Runtime
    from milepost.configs.topology import Topology

_PROBE_BYTES = 1


def make_exporter(topology: Topology, group: RankGroup) -> tuple[DeviceExporter | None, str]:
    """The exporter of rank 0, or None; and what people are told.

    Raises:
        CudaError: handles are wanted always, and this GPU gives none.
    """
    publisher, model = topology.actors.publisher, topology.model
    if publisher is None or model is None or not group.leads:
        return None, "none, versions are exported elsewhere"
    if not offers_handles(topology.actors):
        return None, "none, not wanted, or no engine on this GPU takes handles"
    from milepost.actors.weights.cuda_ipc.cudart import CudaRuntime

    try:
        runtime: Runtime = CudaRuntime(group.device)
        # Some drivers and containers share no memory: they say so when a handle is asked for.
        runtime.handle(runtime.allocate(_PROBE_BYTES))
    except CudaError as error:
        if publisher.cuda_ipc == "always":
            raise
        return None, f"none, {error}"
    exporter = DeviceExporter(
        runtime,
        group.device,
        DTYPES[model.dtype],
        bytes_max=publisher.bucket_bytes_max,
    )
    return exporter, exporter.gpu
