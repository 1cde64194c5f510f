"""The publisher's hands: none of its own, but for versions that travel over a disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.actors.context import ActorContext
from milepost.actors.publisher.core import Publisher
from milepost.actors.publisher.fleet import FleetPublisher
from milepost.actors.publisher.settings import PublisherSettings
from milepost.actors.publisher.works import ConfirmVersion, VersionWritten, WriteVersion

if TYPE_CHECKING:
    from milepost.actors.effects import Work
    from milepost.actors.weights.delta_writer import DeltaSettings, DeltaWriter
    from milepost.configs.spec import ActorSpec


async def run(context: ActorContext) -> None:
    """Serve until stopped."""
    settings = settings_of(context.spec)
    core = make_core(context.spec)
    facts: dict[str, object] = {
        "engines": [*settings.engines, *settings.fleet],
        "transport": settings.transport,
    }
    if settings.transport != "disk-delta":
        await context.serve(core, facts=facts)
        return
    hands = DiskHands(delta_settings(context, Path(settings.delta_root)))
    try:
        await context.serve(core, facts=facts, perform=hands.perform)
    finally:
        hands.close()


def make_core(spec: ActorSpec) -> Publisher | FleetPublisher:
    """The core in its first state."""
    settings = settings_of(spec)
    training = Publisher.of(settings)
    if not settings.fleet:
        return training
    return FleetPublisher(training, settings.of_fleet(spec.topology))


def settings_of(spec: ActorSpec) -> PublisherSettings:
    """What the core works with; versions lie in the run's folder unless the topology says where."""
    publisher = spec.topology.actors.publisher
    assert publisher is not None, "the topology has no publisher"
    folder = publisher.delta.folder
    root = Path(folder) if folder else Path(spec.run_folder) / "weights"
    life = f"{spec.run_id}.{spec.incarnation}"
    return PublisherSettings.of(spec.topology, delta_root=str(root), life=life)


def delta_settings(context: ActorContext, root: Path) -> DeltaSettings:
    """What the writer works with."""
    from milepost.actors.weights.delta_writer import DeltaSettings

    publisher, model = context.topology.actors.publisher, context.topology.model
    assert publisher is not None, "the topology has no publisher"
    assert model is not None, "the topology has no [model]"
    delta = publisher.delta
    return DeltaSettings(
        root=root,
        baseline=model.folder,
        encoding=delta.encoding,
        checksum=delta.checksum,
        workers=delta.workers,
        keep=delta.keep,
        deadline_s=publisher.epoch_deadline_s,
    )


class DiskHands:
    """Writes versions on one thread, in the order they were ordered."""

    def __init__(self, settings: DeltaSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="versions")
        self._writer: DeltaWriter | None = None

    async def perform(self, work: Work) -> object:
        """Carry out one order."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    def close(self) -> None:
        """Stop the encoders; a version being written stays without its index."""
        # What is ordered and has not begun never does: the writer is not there any more.
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._writer is not None:
            self._writer.close()
        self._thread.shutdown()

    def _do(self, work: Work) -> object:
        match work:
            case WriteVersion(_, ready, buckets):
                from milepost.actors.weights.delta_writer import DeltaWriter

                if self._writer is None:
                    # The first version says what versions are made of, and where this life begins.
                    self._writer = DeltaWriter(self._settings, ready.tensors, ready.version)
                named = (
                    (name, tensor)
                    for bucket in buckets
                    for name, tensor in zip(bucket.names, bucket.tensors, strict=True)
                )
                written = self._writer.write(ready.version, ready.digest, named)
                return VersionWritten(written.density, written.file_bytes, written.encode_s)
            case ConfirmVersion(_, version, oldest):
                assert self._writer is not None, "confirmed before anything was written"
                self._writer.confirm(version, oldest)
                return None
            case _:
                raise TypeError(f"the publisher cannot carry out {type(work).__name__}")
