"""Exported versions, kept on the CPU for as long as engines may need them broadcast."""

from __future__ import annotations

from threading import Lock

import msgspec

from milepost.actors.trainer.works import SendBuckets
from milepost.actors.weights.broadcast import BroadcastFailed, Meeting, Rendezvous, send_buckets
from milepost.messages.publisher import BucketReady


class Sender:
    """Rank 0's end of a broadcast. `keep` and `send` may be called from different threads.

    Args:
        device: of the trainer; decides what broadcasts travel over.

    Attributes:
        address: where members meet, `host:port`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._rendezvous = Rendezvous()
        self._kept: dict[int, tuple[BucketReady, ...]] = {}
        self._lock = Lock()
        self.address = self._rendezvous.address

    def keep(
        self, version: int, buckets: tuple[BucketReady, ...], *, published: int | None
    ) -> tuple[BucketReady, ...]:
        """Hold a version, and of the older ones only the one that engines serve.

        Returns:
            What the publisher gets: the names of each bucket, without the bytes.
        """
        with self._lock:
            self._kept = {at: kept for at, kept in self._kept.items() if at == published}
            self._kept[version] = buckets
        return tuple(msgspec.structs.replace(bucket, tensors=()) for bucket in buckets)

    def send(self, work: SendBuckets) -> None:
        """Broadcast a version that is held.

        Raises:
            BroadcastFailed: it is held no longer, an engine did not come, or left.
        """
        with self._lock:
            buckets = self._kept.get(work.version)
        if buckets is None:
            held = ", ".join(str(version) for version in sorted(self._kept))
            raise BroadcastFailed(f"version {work.version} is not held, held are {held or 'none'}")
        meeting = Meeting(
            rendezvous=self.address,
            group=work.group,
            rank=0,
            world_size=work.world_size,
            deadline_s=work.deadline_s,
            device=self._device,
        )
        send_buckets(meeting, (bucket.tensors for bucket in buckets))
