"""Takes a whole version in, from a disk or out of a broadcast, for any kind of engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from milepost.actors.engine.interface import EpochError, PullWeights, ReceiveWeights
from milepost.messages.bulk import Bulk

if TYPE_CHECKING:
    from milepost.actors.weights.local_copy import LocalCopy

Stage: TypeAlias = Callable[[tuple[str, ...], tuple[Bulk, ...]], object]
"""Stages named tensors; their buffers are only lent."""


class Receiver:
    """The engine's end of the transports that bring a whole version.

    Args:
        local_folder: of this host's copy (disk-delta).
        baseline: the starting checkpoint (disk-delta).
        device: of the engine; decides what broadcasts travel over.
        patch_threads: that patch the copy (disk-delta).
    """

    def __init__(
        self, local_folder: Path, *, baseline: Path, device: str, patch_threads: int = 1
    ) -> None:
        self._local_folder, self._baseline = local_folder, baseline
        self._device = device
        self._patch_threads = patch_threads

    def copy(self, root: str) -> LocalCopy:
        """This host's copy, as it follows the versions in `root`."""
        from milepost.actors.weights.local_copy import LocalCopy
        from milepost.actors.weights.versions import Versions

        versions = Versions(Path(root))
        return LocalCopy(self._local_folder, versions, self._baseline, threads=self._patch_threads)

    def pull(self, work: PullWeights, stage: Stage) -> None:
        """Patch the copy, and stage every tensor of it.

        Raises:
            EpochError: the version is not there, damaged, or stands on other bytes.
        """
        from milepost.actors.weights.chunks import PayloadError
        from milepost.actors.weights.manifest import ManifestError, read_checkpoint
        from milepost.actors.weights.versions import LineageError

        copy = self.copy(work.root)
        try:
            with copy.at_version(work.version) as (_, views):
                for name, place in read_checkpoint(copy.checkpoint).items():
                    spec = place.spec
                    stage((name,), (Bulk(spec.dtype, spec.shape, views[name].data),))
        except (LineageError, PayloadError, ManifestError) as error:
            raise EpochError(f"version {work.version} cannot be pulled: {error}") from error

    def receive(self, work: ReceiveWeights, stage: Stage) -> None:
        """Take part in a broadcast, and stage each bucket as it comes.

        Raises:
            EpochError: a peer is gone or silent.
        """
        from milepost.actors.weights.broadcast import BroadcastFailed, Meeting, receive_buckets

        meeting = Meeting(
            rendezvous=work.rendezvous,
            group=work.group,
            rank=work.rank,
            world_size=work.world_size,
            deadline_s=work.deadline_s,
            device=self._device,
        )
        try:
            receive_buckets(meeting, work.buckets, stage)
        except BroadcastFailed as error:
            raise EpochError(str(error)) from error
